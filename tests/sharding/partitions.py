"""What steps of DeepSpeed's and Megatron's partitions have in common, by their rules and by their own engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from sharding.cells import DOUBLE, Found, Wanted, gradients
from sharding.models import BUSY, Irregular, Small, named, numbers, off, state_of, whole
from torch import Tensor

from layerwise.torch.sharding._flat import flat_of
from layerwise.torch.sharding._gathering import whole_of
from sharding import flats

STEPS = 3


def groups_of(params: Mapping[str, Any]) -> list[list[str]]:
    """Matrices and the others, which are flattened apart."""
    return [[n for n, p in params.items() if p.ndim > 1], [n for n, p in params.items() if p.ndim <= 1]]


def optimizer_of(front: Any, params: Mapping[str, Any]) -> Any:
    matrices, others = ([params[n] for n in names] for names in groups_of(params))
    return front([{"params": matrices}, {"params": others, "weight_decay": 0.0}], **BUSY[front])


@cache
def alone(front: Any) -> Wanted:
    """What one process has in the end that has the parameters whole."""
    params = named(Irregular(0, DOUBLE))
    opt = optimizer_of(front, params)
    for grads in gradients(None)[:STEPS]:
        for name, p in params.items():
            p.grad = grads[name].detach().clone()
        opt.step()
    parts = {**params, **state_of(opt, params)}
    return Wanted({name: numbers(x).copy() for name, x in parts.items()}, {}, 1e-12)


def found(opt: Any, segments: Any, wanted: Wanted) -> Found:
    parts = flats.whole(opt, segments)
    assert parts.keys() == wanted.parts.keys()
    unlike = [name for name, x in parts.items() if off(x, wanted.parts[name], wanted.tolerance)]
    return Found(unlike, {name: numbers(x).tobytes() for name, x in parts.items()}, {}, 0)


def weights_of(buffers: Sequence[Tensor], values: Sequence[Tensor]) -> dict[str, Any]:
    each = (whole_of(flat_of(p), x.detach()) for p, x in zip(buffers, values, strict=True))
    return {name: whole(one) for parts in each for name, one in parts.items()}


def replayed(front: Any, grads: Sequence[Mapping[str, Any]], start: torch.dtype = torch.float32) -> dict[str, Any]:
    """The weights in float32 that begin as the model does in a dtype, and have these gradients."""
    params = dict(Small(start).float().named_parameters())
    opt = optimizer_of(front, params)
    for one in grads:
        for name, p in params.items():
            p.grad = torch.tensor(one[name]).to(p.dtype)
        opt.step()
    return {name: whole(p) for name, p in params.items()}
