"""Conversion between flat buffers and whole tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from layerwise.layout import Piece
from layerwise.torch.sharding._flat import Flat
from layerwise.torch.sharding._held import HeldBox

CPU = torch.device("cpu")


def gathered(flat: Flat, here: Tensor, lengths: Sequence[int]) -> list[Tensor]:
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


def whole_of(flat: Flat, values: Tensor) -> dict[str, Tensor]:
    """Return whole tensors by name, given an array laid out like the buffer."""
    here = torch.cat([one.of(values) for one in flat.stretches]) if flat.stretches else values[:0]
    lengths = [sum(one.end - one.start for one in stretches) for stretches in flat.ranks]
    found = {one.name: torch.zeros(one.shape, dtype=values.dtype) for one in flat.spreads}
    for stretches, numbers in zip(flat.ranks, gathered(flat, here, lengths), strict=True):
        parts = torch.split(numbers, [one.end - one.start for one in stretches])
        for one, part in zip(stretches, parts, strict=True):
            found[one.spread.name].view(-1)[one.start : one.end] = part
    return found


def put_whole(flat: Flat, values: Tensor, whole: Mapping[str, Tensor]) -> None:
    """Write the buffer's parts of whole tensors to their places."""
    for one in flat.stretches:
        one.of(values).copy_(whole[one.spread.name].reshape(-1)[one.start : one.end])


Places = Sequence[tuple[str, Piece, HeldBox, Sequence[bool], tuple[int, tuple[int, ...]]]]


def whole_of_boxes(
    flat: Flat, values: Tensor, ranks: Sequence[Places], lengths: Sequence[int], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Return whole states by the tensors' names, given those of the boxes, one after the other."""
    found = {name: torch.zeros(shape, dtype=values.dtype) for name, shape in shapes.items()}
    for places, numbers in zip(ranks, gathered(flat, values, lengths), strict=True):
        for part, own in _each(places, found, numbers):
            part.copy_(own)
    return found


def put_whole_in_boxes(values: Tensor, places: Places, whole: Mapping[str, Tensor]) -> None:
    """Write the boxes' parts of whole states to their places."""
    for part, own in _each(places, whole, values):
        own.copy_(part)


def _each(places: Places, whole: Mapping[str, Tensor], values: Tensor) -> Iterator[tuple[Any, Any]]:
    """Yield each box's part of a whole state, and of the states that lie box by box."""
    for name, piece, box, extends, (start, shape) in places:
        part = box.of_whole(piece.view(whole[name]), extends)
        yield part, values[start : start + prod(shape)].view(shape)
