"""The GPU engine on ranks, in Triton's interpreter: the same steps as of one process that has everything whole."""

from __future__ import annotations

import pytest
import torch
from sharding.models import KERNELED, TOLERANCE, close, same
from sharding.test_trajectories import alone, shared_stats

from layerwise.torch import Adafactor, Lamb
from sharding import gpu_engine, runs

pytest.importorskip("triton", reason="kernels need Triton")
pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the ranks have their tensors in the machine's memory"),
]
fronts = pytest.mark.parametrize("front", KERNELED)


TWO_DIMENSIONAL = "two-dimensional", {"max_grad_norm": 0.5}


@pytest.mark.parametrize(
    ("front", "layout", "options"),
    [
        (Adafactor, "fsdp on 2", {}),
        *(pytest.param(front, "fsdp on 3", {}, marks=pytest.mark.slow) for front in KERNELED),
        *(pytest.param(front, *TWO_DIMENSIONAL, marks=() if front is Lamb else pytest.mark.slow) for front in KERNELED),
    ],
)
def test_layouts(ranks, front, layout, options):
    world = runs.layout_of(layout)[0]
    given = {**options, "fused": True}
    found = shared_stats(ranks.run(world, gpu_engine.stepped, front, layout, torch.float64, given))
    close(
        found[0],
        alone(front, torch.float64, steps=gpu_engine.STEPS, **options),
        TOLERANCE[torch.float64],
        (layout, options),
    )
    for other in found[1:]:
        same(other, found[0])


@pytest.mark.parametrize("front", [Adafactor, pytest.param(Lamb, marks=pytest.mark.slow)])
def test_flat_buffers(ranks, front):
    given = {"max_grad_norm": 0.5, "fused": True}
    found = shared_stats(ranks.run(2, gpu_engine.stepped_flat, front, "one flat buffer", torch.float64, given))
    wanted = alone(front, torch.float64, steps=gpu_engine.STEPS, max_grad_norm=0.5)
    for one in found:
        close(one, wanted, TOLERANCE[torch.float64])


def test_kernels_that_fail_their_proof_on_all_ranks(ranks):
    found = ranks.run(2, gpu_engine.proven, range(2), Lamb, "fsdp on 2", torch.float64, {})
    close(shared_stats(found)[0], alone(Lamb, torch.float64, steps=gpu_engine.STEPS), TOLERANCE[torch.float64])


def test_kernels_that_fail_their_proof_on_one_rank(ranks):
    """Nobody waits for the others' sums: all are told what steps it on each."""
    found = ranks.run(2, gpu_engine.proven, (0,), Lamb, "fsdp on 2", torch.float64, {})
    assert all(
        "what steps it is the rule, " in words and "on one and the GPU engine on the other" in words for words in found
    )
