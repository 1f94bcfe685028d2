"""States of whole tensors, gathered from the boxes in ranks' buffers, and divided into them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from layerwise.core.plan import Plan
from layerwise.core.slot import own_entries
from layerwise.layout.pieces import Piece
from layerwise.torch.groups._members import State
from layerwise.torch.sharding._flat._buffers import FlatBuffer
from layerwise.torch.sharding._local_parts import CPU, on_host

Shape = tuple[int, ...]


def whole_state(plan: Plan, flat: FlatBuffer, state: Mapping[str, Tensor]) -> dict[str, State]:
    """Return the states of the tensors in a buffer, whole and by name. All ranks call this together.

    Another program's entry is divided if it has the buffer's shape; otherwise it is each tensor's.
    """
    divided = {**own_entries(state), **{key: x for key, x in state.items() if _has_shape(x, plan.shape)}}
    divided.pop("step", None)
    of_each = {key: on_host(x) if isinstance(x, Tensor) else x for key, x in state.items() if key not in divided}
    found: list[State] = [
        {
            **deepcopy(of_each),
            **{
                key: torch.zeros(shape, dtype=x.dtype)
                for key, x in divided.items()
                if (shape := one.state_shapes.get(key, one.shape)) is not None
            },
        }
        for one in plan.stored_together
    ]
    mine = [
        (one.member, one.number, one.box, key, one.view(state[key], key).detach().to(CPU, copy=True))
        for one in plan.held
        for key in found[one.member].keys() & divided.keys()
    ]
    said: list[Any] = [mine]
    for axis, _ in flat.axes:
        said = [None] * flat.parts
        dist.all_gather_object(said, mine, group=axis.group)
    for member, number, box, key, part in chain.from_iterable(said):
        _of_whole(plan.stored_together[member].layout.pieces[number], box, found[member][key], part.shape).copy_(part)
    return {str(one.name): own for one, own in zip(plan.stored_together, found, strict=True)}


def _has_shape(x: object, shape: Shape) -> bool:
    return isinstance(x, Tensor) and tuple(x.shape) == shape


def local_entry(plan: Plan, p: Tensor, key: str, whole: Mapping[str, Tensor]) -> Tensor:
    """Return a buffer's part of another program's entry, or the entry, given those of whole tensors by name."""
    shapes = {str(one.name): one.shape for one in plan.stored_together}
    parts = all(_has_shape(x, shapes[name]) for name, x in whole.items())
    return local_state(plan, p, key, whole) if parts else next(iter(whole.values()))


def local_state(plan: Plan, p: Tensor, key: str, whole: Mapping[str, Tensor]) -> Tensor:
    """Return a buffer's part of a state, given that of whole tensors by name."""
    dtypes = {x.dtype for x in whole.values()}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    values = torch.zeros(plan.state_shapes.get(key) or tuple(p.shape), dtype=dtype, device=p.device)
    for one in plan.held:
        name = str(plan.stored_together[one.member].name)
        if name in whole:
            part = one.view(values, key)
            part.copy_(_of_whole(one.piece, one.box, whole[name], part.shape))
    return values


def _of_whole(piece: Piece, box: Any, whole: Tensor, size: Shape) -> Tensor:
    """Return a box's part, of this size, of a whole tensor, or of a state of it."""
    seen: Tensor = piece.view(whole)
    found: Tensor = box.take_from(seen.reshape(tuple(seen.shape) or (1,)), size)
    return found
