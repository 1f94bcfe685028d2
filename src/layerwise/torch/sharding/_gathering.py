"""States of whole tensors, gathered from the boxes of them that ranks hold, and cut into those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from layerwise.core.plan import Plan
from layerwise.torch.sharding._cuts import is_dtensor
from layerwise.torch.sharding._flat import Flat
from layerwise.torch.sharding._held import held_in_buffer

CPU = torch.device("cpu")
State = dict[str, Any]


def on_host(x: Any) -> Tensor:
    """Return a whole tensor in the host's memory; of a DTensor all ranks call this together."""
    whole: Tensor = x.full_tensor() if is_dtensor(x) else x
    return whole.detach().to(CPU, copy=True)


def whole_state(plan: Plan, flat: Flat, state: Mapping[str, Any]) -> dict[str, State]:
    """Return the states of the tensors in a buffer, whole and by name. All ranks call this together."""
    found: dict[str, State] = {str(one.name): {} for one in plan.members}
    for name, one in zip(found, plan.members, strict=True):
        for key, x in state.items():
            shape = one.state_shapes.get(key, one.shape)
            if key == "step":
                found[name][key] = x.clone()
            elif shape is not None:
                found[name][key] = torch.zeros(shape, dtype=x.dtype)
    names = list(found)
    held = [held_in_buffer(plan.rule, plan.members, flat, rank)[0] for rank in range(flat.parts)]
    each = [
        [(one, key) for one in own for key in state if key != "step" and key in found[names[one.member]]]
        for own in held
    ]
    said: list[Any] = [[one.view(state[key], key).detach().to(CPU, copy=True) for one, key in each[flat.rank]]]
    for axis, _ in flat.axes:
        said, here = [None] * flat.parts, said[0]
        dist.all_gather_object(said, here, group=axis.group)
    for own, parts in zip(each, said, strict=True):
        for (held_one, key), part in zip(own, parts, strict=True):
            held_one.of_whole(found[names[held_one.member]][key], key).copy_(part.view(held_one.size(key)))
    return found


def local_state(plan: Plan, p: Tensor, key: str, whole: Mapping[str, Tensor]) -> Tensor:
    """Return a buffer's part of a state, given that of whole tensors by name."""
    dtypes = {x.dtype for x in whole.values()}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    values = torch.zeros(plan.state_shapes.get(key) or tuple(p.shape), dtype=dtype, device=p.device)
    for one in plan.held:
        name = str(plan.members[one.member].name)
        if name in whole:
            one.view(values, key).copy_(one.of_whole(whole[name], key))
    return values
