"""Whatever a model is wrapped in to be trained by many ranks, a step is that of one process with the same gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from sharding.cells import DOUBLE, tolerance_of
from sharding.models import FRONTS, Blend, Small, close, named
from sharding.releasing import Branching
from sharding.wrappings import WRAPPINGS, batches, fsdp1, gathered, optimizer_of

from layerwise.torch import Lamb

fronts = pytest.mark.parametrize("front", FRONTS)
BY_WORLD = sorted(WRAPPINGS, key=lambda name: WRAPPINGS[name][0])
LIKE_OTHERS = "FSDP2, resharded after forward", "FSDP2, not resharded", "FSDP1, SHARD_GRAD_OP"  # for the library
each_wrapping = pytest.mark.parametrize(
    "wrapping", [pytest.param(name, marks=pytest.mark.slow if name in LIKE_OTHERS else ()) for name in BY_WORLD]
)
CLIP = {"max_grad_norm": 0.1}


def _trained(front: Any, wrapping: str, dtype: torch.dtype, options: Mapping[str, Any], zero: bool) -> Any:
    """What ranks that train have in the end, and the gradients they had on the way."""
    model = WRAPPINGS[wrapping][1](Small(dtype))
    opt, grads = optimizer_of(front, model, options, zero), []
    for batch in batches(3):
        opt.zero_grad()
        model(batch).backward()
        grads.append(gathered(model, lambda p: p.grad))
        opt.step()
    return gathered(model, lambda p: p), grads


def check(ranks: Any, front: Any, wrapping: str, dtype: torch.dtype, zero: bool = False, **options: Any) -> None:
    (weights, grads), *others = ranks.run(WRAPPINGS[wrapping][0], _trained, front, wrapping, dtype, options, zero)
    assert any(np.abs(g).max() > 0 for g in grads[0].values())
    model = Small(dtype)  # in one process that has everything whole and is given these gradients
    opt = optimizer_of(front, model, options)
    for one in grads:
        for name, p in named(model).items():
            p.grad = torch.tensor(one[name]).to(dtype)
        opt.step()
    close(weights, gathered(model, lambda p: p), tolerance_of(front, dtype), wrapping)
    for other, _ in others:
        close(other, weights, 0.0)


@fronts
@pytest.mark.thinned(1, 2)
@each_wrapping
def test_a_step_is_that_of_one_process_with_these_gradients(ranks, front, wrapping):
    check(ranks, front, wrapping, torch.float32)


@pytest.mark.parametrize("front", [*FRONTS, Blend])
@pytest.mark.thinned(1, 2)
@pytest.mark.parametrize("options", [{}, CLIP], ids=str)
def test_zero_redundancy_optimizer_steps_some_parameters_on_each_rank(ranks, front, options):
    check(ranks, front, "DDP", DOUBLE, zero=True, **options)


def _with_a_block_unused() -> set[str]:
    """The parts of the model that have state after some steps."""
    model = fsdp1(Branching(torch.float32), nested=True)
    opt = Lamb(model.named_parameters(), lr=0.1)
    for batch in batches(2):
        model(batch).backward()
        opt.step()
        opt.zero_grad()
    stepped = [name for name, p in model.named_parameters() if opt.state.get(p)]
    return {part for part in ("embed", "blocks.0", "blocks.1", "norm") if any(part in name for name in stepped)}


def test_flat_pieces_without_a_gradient_wait_also_where_a_rank_holds_nothing_of_them(ranks):
    """FSDP1 shows no gradient of what a rank has nothing of, in either case."""
    for found in ranks.run(3, _with_a_block_unused):
        assert found == {"embed", "blocks.0", "norm"}


def _undescribed() -> None:
    Lamb(fsdp1(Small(torch.float32), described=False).named_parameters(), lr=0.1)


def test_flat_pieces_that_nobody_described_are_refused(ranks):
    """FSDP1 shows an optimizer flat pieces and does not say whose; to take them for tensors must not happen."""
    for found in ranks.outcomes(2, _undescribed):
        assert found.error == "ParameterError"
        assert "flat.from_fsdp1(model)" in found.traceback
