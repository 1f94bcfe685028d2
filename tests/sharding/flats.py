"""Flat buffers as ranks hold them: cut anywhere, with padding that no rank may read."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from math import nan, prod
from typing import Any

import torch
import torch.distributed as dist
from sharding.models import SHAPES
from torch import Tensor, nn

from layerwise.torch import Segments, Stretch, flat
from layerwise.torch.checkpoints._saving import restored
from layerwise.torch.flat._buffers import elements
from layerwise.torch.sharding._cuts import division_of

TENSORS = {f"{part}.{name}": shape for part, shapes in SHAPES.items() for name, shape in shapes.items()}
Described = list[list[Stretch]]  # of each buffer


def cuts(world: int, seed: int, numel: int) -> list[int]:
    draw = random.Random(seed)
    return [0, *sorted(draw.randint(0, numel) for _ in range(world - 1)), numel]


def one_buffer(world: int, rank: int, seed: int = 0, padding: int = 3) -> Described:
    """All tensors one after the other, cut anywhere, with padding before each: ZeRO's first stages."""
    ends = cuts(world, seed, sum(map(prod, TENSORS.values())))
    found, at, place = [], 0, 0
    for name, shape in TENSORS.items():
        start, end = (min(max(x - at, 0), prod(shape)) for x in ends[rank : rank + 2])
        if start < end:
            place += padding
            found.append(Stretch(name, shape, start, end, place))
            place += end - start
        at += prod(shape)
    return [found]


def a_buffer_each(world: int, rank: int) -> Described:
    """A buffer for each tensor, empty where the rank holds nothing of it: FSDP1's own parameters, Megatron's."""
    [found] = one_buffer(world, rank, seed=1)
    here = {one.name: one._replace(offset=0) for one in found}
    return [[here.get(name, Stretch(name, shape, 0, 0, 0))] for name, shape in TENSORS.items()]


def equal_parts(world: int, rank: int) -> Described:
    """Each tensor cut into equal parts, the last shorter: ZeRO's third stage."""
    found, place = [], 0
    for name, shape in TENSORS.items():
        part = -(-prod(shape) // world)
        start, end = (min(x * part, prod(shape)) for x in (rank, rank + 1))
        found.append(Stretch(name, shape, start, end, place))
        place += part
    return [found]


def interleaved(world: int, rank: int) -> Described:
    """Stretches of 5 elements dealt out in turn: several of each tensor on each rank."""
    found, place = [], 0
    for name, shape in TENSORS.items():
        for i, start in enumerate(range(0, prod(shape), 5)):
            if i % world == rank:
                end = min(start + 5, prod(shape))
                found.append(Stretch(name, shape, start, end, place))
                place += end - start
    return [found]


# The number of ranks and what they hold, by name.
FLATS: dict[str, tuple[int, Callable[[int, int], Described]]] = {
    "one flat buffer": (2, one_buffer),
    "one flat buffer on 4": (4, one_buffer),
    "a flat buffer each": (3, a_buffer_each),
    "equal parts": (3, equal_parts),
    "interleaved": (2, interleaved),
}


def filled(described: Sequence[Stretch], values: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """A buffer with these numbers, and nan between them."""
    ends = [(one.offset or 0) + one.end - one.start for one in described]
    buffer = torch.full((max(ends, default=0) + (3 if len(described) > 1 else 0),), nan, dtype=dtype)
    for one in described:
        place = slice(one.offset, (one.offset or 0) + one.end - one.start)
        buffer[place] = values[one.name].detach().reshape(-1)[one.start : one.end].to(dtype)
    return buffer


def described(layout: str) -> Described:
    return FLATS[layout][1](dist.get_world_size(), dist.get_rank())


def begun(layout: str, dtype: torch.dtype, values: Mapping[str, Tensor]) -> tuple[Segments, list[list[Stretch]]]:
    stretches = described(layout)
    return Segments({nn.Parameter(filled(one, values, dtype)): one for one in stretches}), stretches


def given(segments: Segments, stretches: Described, values: Mapping[str, Tensor]) -> None:
    """Give the buffers that hold something their gradients."""
    for p, one in zip(segments.parameters(), stretches, strict=True):
        p.grad = filled(one, values, p.dtype) if p.numel() else None


def whole_of(known: Any, values: Tensor) -> dict[str, Tensor]:
    """Whole tensors by name, given an array that lies as a buffer does."""
    said: list[Any] = [[(one.name, one.start, one.end, elements(one, values)) for one in known.stretches]]
    if known.axes:
        [(axis, _)] = known.axes
        [mine], said = said, [None] * len(axis.ranks)
        dist.all_gather_object(said, mine, group=axis.group)
    found = {one.name: torch.zeros(one.shape, dtype=values.dtype) for one in known.spreads}
    for name, start, end, numbers in (each for one in said for each in one):
        found[name].view(-1)[start:end] = numbers
    return found


def whole(opt: Any, segments: Segments) -> dict[str, Any]:
    """Weights and state by the tensors' names."""
    weights: dict[str, Tensor] = {}
    for p in segments.parameters():
        weights |= whole_of(division_of(p), p.detach())
    saved = flat.full_state_dict(opt)
    names = {key: name for g in saved["param_groups"] for key, name in zip(g["params"], g["param_names"], strict=True)}
    states = {
        f"{names[key]} {field}": x
        for key, one in saved["state"].items()
        for field, x in restored(one, weights[names[key]].shape).items()
    }
    return {**weights, **states}
