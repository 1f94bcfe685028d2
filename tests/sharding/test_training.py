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

# FSDP1 shows an optimizer flat pieces of its parameters and does not say whose. To take them for whole tensors is the
# one thing that must not happen: the step is either right or refused, with one of these.
REFUSED = {"FSDP1": ("ParameterError",)}


def check(ranks: Any, front: Any, wrapping: str, dtype: torch.dtype, *, zero: bool = False, **options: Any) -> None:
    found = ranks.outcomes(WRAPPINGS[wrapping][0], runs.trained, front, wrapping, dtype, options, zero)
    if all(one.error in REFUSED.get(wrapping, ()) for one in found):
        assert all("FSDP" in one.traceback for one in found)  # the message says what it was, and what would do
        return
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
