"""DeepSpeed's ZeRO of stages 1, 2 and 3 steps its partitions as one process steps the parameters."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from sharding.models import FRONTS, TOLERANCE, close, same

from layerwise.errors import ContradictionError, HyperparameterError
from layerwise.torch import Lamb, flat
from sharding import zero

fronts = pytest.mark.parametrize("front", FRONTS)
installed = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")


@pytest.mark.parametrize(("stage", "world"), [(1, 2), (2, 3), (3, 2), (3, 4)])
@fronts
@pytest.mark.thinned(1, 2)
def test_partitions_by_its_rules(ranks, front, stage, world):
    """As its source lays them out, stepped in the order in which it steps them."""
    found = ranks.run(world, zero.by_rules, front, stage)
    close(found[0], zero.alone(front), TOLERANCE[torch.float64])
    for other in found[1:]:
        same(other, found[0])


def test_partitions_that_nobody_described(ranks):
    for found in ranks.outcomes(2, zero.undescribed, Lamb):
        assert found.error == "ParameterError"
        assert "flat.from_deepspeed(engine)" in found.traceback


@pytest.mark.parametrize(
    ("options", "told"), [({"max_grad_norm": 1.0}, "gradient_clipping"), ({"skip_nonfinite": True}, "scales the loss")]
)
def test_what_looks_at_all_gradients(options, told):
    """DeepSpeed steps one group after the other, so no step sees them all."""
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    inner = Lamb([{"params": [p]} for p in params], **options)
    shown: dict[str, Any] = {"single_partition_of_fp32_groups": params, "bit16_groups": [[], []]}
    with pytest.raises(ContradictionError, match=told):
        flat.from_deepspeed(zero.SimpleNamespace(**shown, real_dp_process_group=[None, None], optimizer=inner))


@pytest.mark.parametrize("given", [None, Lamb([torch.nn.Parameter(torch.ones(2))]), torch.nn.Linear(1, 1)])
def test_something_else(given):
    with pytest.raises(HyperparameterError, match="an engine of DeepSpeed with ZeRO"):
        flat.from_deepspeed(given)


@installed
@pytest.mark.parametrize("stage", [1, 2, 3])
@fronts
@pytest.mark.thinned(1, 2)
def test_its_own_engine(ranks, front, stage, tmp_path):
    # Always three, because DeepSpeed numbers parameters for as long as a process runs, and compares the numbers.
    found = ranks.run(3, zero.trained, front, stage, str(tmp_path))
    (weights, grads, kept), *_ = found
    assert kept
    close(weights, zero.replayed(front, grads), TOLERANCE[torch.float32])
    for other, _, also_kept in found[1:]:
        assert also_kept
        same(other, weights)
