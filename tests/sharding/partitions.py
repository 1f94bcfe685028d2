"""What steps of DeepSpeed's and Megatron's partitions have in common, by the rules of their sources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sharding.cells import DOUBLE, Found, Wanted, gradients
from sharding.models import BUSY, Irregular, named, numbers, off, state_of

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
