"""Weights and state on a GPU go when nobody has them any more, without the garbage collector."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from gpu.front import both, fronts, give

pytestmark = pytest.mark.usefixtures("on_gpu")


@fronts
@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 1.0}, {"capturable": True}], ids=str)
def test_nothing_is_left(front, options):
    gc.collect()
    gc.disable()
    try:
        (params, opt), rest = both(front, **options)
        del rest
        for seed in range(3):
            give(params, seed)
            opt.step()
        opt.stats()
        tensors = [*params, *(p.grad for p in params), *(x for state in opt.state.values() for x in state.values())]
        refs = [weakref.ref(x) for x in tensors if isinstance(x, torch.Tensor)]
        del params, opt, tensors
        assert not any(ref() is not None for ref in refs)
    finally:
        gc.enable()
