"""Whatever a model is wrapped in to be trained by many ranks, a step is that of one process with the same gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sharding.models import FRONTS, TOLERANCE, close, same
from sharding.wrappings import WRAPPINGS

from sharding import runs

fronts = pytest.mark.parametrize("front", FRONTS)
each_wrapping = pytest.mark.parametrize("wrapping", WRAPPINGS)


def check(ranks: Any, front: Any, wrapping: str, dtype: torch.dtype, *, zero: bool = False, **options: Any) -> None:
    found = ranks.outcomes(WRAPPINGS[wrapping][0], runs.trained, front, wrapping, dtype, options, zero)
    assert not any(one.error for one in found), found
    (weights, grads), *others = (one.value for one in found)
    assert any(np.abs(g).max() > 0 for g in grads[0].values())
    close(weights, runs.replayed(front, dtype, grads, options), TOLERANCE[dtype], wrapping)
    for other, _ in others:
        same(other, weights)


@pytest.mark.slow
@each_wrapping
def test_the_wrappings_train(ranks, wrapping):
    """With an elementwise optimizer, which knows nothing of them."""
    check(ranks, torch.optim.AdamW, wrapping, torch.float32)


@each_wrapping
@fronts
@pytest.mark.thinned(1, 2)
def test_wrappings(ranks, front, wrapping):
    check(ranks, front, wrapping, torch.float32)


@fronts
@pytest.mark.needs("max_grad_norm")
@pytest.mark.thinned(1, 2)
def test_options(ranks, front):
    check(ranks, front, "TP and FSDP2", torch.float64, max_grad_norm=0.1, maximize=True)


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.1}], ids=str)
@fronts
@pytest.mark.thinned(1, 2)
def test_zero_redundancy_optimizer(ranks, front, options):
    check(ranks, front, "DDP", torch.float64, zero=True, **options)


def test_flat_pieces_that_nobody_described(ranks):
    """FSDP1 shows an optimizer flat pieces and does not say whose; to take them for tensors must not happen."""
    for found in ranks.outcomes(2, runs.undescribed):
        assert found.error == "ParameterError"
        assert "flat.from_fsdp1(model)" in found.traceback
