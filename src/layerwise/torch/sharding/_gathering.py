"""States of whole tensors, gathered from the boxes of them that ranks hold, and cut into those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from layerwise.core.plan import Held, Plan
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
    ranks = [held_in_buffer(plan.rule, plan.members, flat, rank)[0] for rank in range(flat.parts)]
    found: dict[str, State] = {str(one.name): {} for one in plan.members}
    for key, x in sorted(state.items()):  # in an order that is the same on all ranks
        each = {name: x.clone() for name in found} if key == "step" else _whole(plan, flat, ranks, key, x)
        for name, one in each.items():
            found[name][key] = one
    return found


def _whole(plan: Plan, flat: Flat, ranks: Sequence[Sequence[Held]], key: str, x: Tensor) -> dict[str, Tensor]:
    shapes = [one.state_shapes.get(key, one.shape) for one in plan.members]
    found = {i: torch.zeros(shape, dtype=x.dtype) for i, shape in enumerate(shapes) if shape is not None}
    each = [[one for one in held if one.member in found] for held in ranks]
    sizes = [[prod(one.size(key)) for one in held] for held in each]
    here = torch.cat([x[:0], *(one.view(x, key).reshape(-1) for one in each[flat.rank])])
    for held, own, numbers in zip(each, sizes, _gathered(flat, here, list(map(sum, sizes))), strict=True):
        for one, part in zip(held, torch.split(numbers, own), strict=True):
            one.of_whole(found[one.member], key).copy_(part.view(one.size(key)))
    return {str(plan.members[i].name): one for i, one in found.items()}


def _gathered(flat: Flat, here: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Return the numbers of each of so many ranks, in the host's memory."""
    if not flat.axes:
        return [here.to(CPU, copy=True)]
    [(axis, _)] = flat.axes
    size = here.element_size()
    room = torch.zeros(max(lengths) * size, dtype=torch.uint8, device=axis.device_type)
    room[: here.numel() * size] = here.detach().contiguous().view(torch.uint8).to(room.device)
    each = [torch.empty_like(room) for _ in lengths]
    dist.all_gather(each, room, group=axis.group)
    return [one[: n * size].to(CPU).view(here.dtype) for one, n in zip(each, lengths, strict=True)]


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
