"""The plan of a flat buffer's step: the boxes of the tensors that it holds stretches of, and their places in its state.

A state that has a number for each element of all tensors lies as the buffer does. Any other is the boxes' parts of it,
one after the other: of row statistics those of the box's rows, of column statistics those of its columns. So every rank
that holds a part of a row has that row's number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerwise.blocks import Blocks
from layerwise.core.library import Library
from layerwise.core.plan import Held
from layerwise.engines import Job, PartOf
from layerwise.errors import StateError
from layerwise.hyper import Hyper
from layerwise.layout import Kept, piece_dims
from layerwise.storage import Storage
from layerwise.storage.options import is_of_layer
from layerwise.telemetry import summary
from layerwise.torch.sharding._cuts import is_dtensor
from layerwise.torch.sharding._flat import Flat
from layerwise.torch.sharding._held import Field, HeldBox
from layerwise.torch.sharding._stretches import Box, boxes_of, nothing, seen
from layerwise.torch.step._plan import Plan, laid_out

Shape = tuple[int, ...]


@dataclass(frozen=True)
class FlatPlan(Plan):
    """The plan of one flat buffer's step. `held` are boxes of all tensors; `members` the tensors' own plans."""

    held: tuple[HeldBox, ...]
    members: tuple[Plan, ...]
    flat: Flat

    @property
    def itself(self) -> bool:
        return False

    @property
    def smallest(self) -> Shape:
        return min((tuple(one.shape) for one in self.members), key=prod)

    @property
    def way_out(self) -> str:
        return "Load whole tensors by layerwise.torch.flat.load_full_state_dict, and what lay on other ranks too."

    def member(self, one: Any) -> Plan:
        return next(plan for plan in self.members if plan.name == one.spread.name)

    def described(self) -> Any:
        return [one.described() for one in self.members], self.flat.described()

    def in_words(self) -> Any:
        return {one.name: tuple(one.shape) for one in self.members}

    def why_not_grouped(self) -> str:
        return "stretches of a flat buffer begin and end within groups"

    def zeros(self, lib: Library, field: str, p: Tensor, dtype: str) -> Any:
        return lib.zeros(self.state_shapes[field] or (), dtype, p)

    def placed(self, key: str, value: Tensor) -> Tensor:
        if is_dtensor(value):
            raise StateError(f"{key!r} of {self.name} is a DTensor, and the parameter a flat buffer. {self.way_out}")
        return value

    def jobs(
        self, lib: Library, p: Tensor, arrays: Mapping[str, Any], storage: Callable[[Held], Storage | None]
    ) -> Iterator[Job]:
        for one in self.held:
            shapes = self.member(one).state_shapes
            fields = [None if shape is None else one.of_state(key, arrays[key]) for key, shape in shapes.items()]
            cut = PartOf(one.spread.name, one.number)
            where = one.piece.block_dims, one.shape, one.parts, cut
            yield Job(self.rule, one.piece.h, one.view(p), self.rule.State(*fields), *where, storage(one))

    def measured(self, each: Iterator[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
        found: dict[tuple[str, int], Mapping[str, Any]] = {}
        for one in self.held:
            key, now = (one.spread.name, one.number), one.everywhere(next(each))
            found[key] = _joined(found[key], now) if key in found else now
        for plan in self.members:
            pieces = plan.layout.pieces
            yield plan.name, summary([found[plan.name, i] for i in range(len(pieces))], pieces)


def _joined(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Return the union of both: a box knows nothing of blocks in which it has no part."""
    return {key: np.where(np.isnan(a[key]), b[key], a[key]) for key in a}


def flat_plan_of(
    rule: Any, p: Tensor, h: Hyper, name: str, blocks: Callable[[str], Blocks | None], flat: Flat
) -> FlatPlan:
    """Return the plan of a flat buffer's step with these settings."""
    members = tuple(
        laid_out(rule, torch.Size(one.shape), p.dtype, h, one.name, blocks(one.name), None) for one in flat.spreads
    )
    keys = rule.State._fields
    alike = {key: all(one.elementwise[key] for one in members) for key in keys}
    held, lengths = holding(rule, members, flat, flat.rank, alike)
    there = {key: any(one.state_shapes[key] is not None for one in members) for key in keys}
    shapes: dict[str, Shape | None] = {
        key: None if not there[key] else (flat.length,) if alike[key] else (lengths[key],) for key in keys
    }
    kept: dict[str, Kept | None] = dict.fromkeys(keys, (True,))
    whole = members[0].layout, held, shapes, kept, alike, p.dtype, flat
    return FlatPlan(name, rule, h, tuple(p.shape), *whole, members, flat)


def holding(
    rule: Any, members: Sequence[Plan], flat: Flat, rank: int, alike: Mapping[str, bool]
) -> tuple[tuple[HeldBox, ...], dict[str, int]]:
    """Return the boxes that a rank holds, and the lengths of those parts of its state that lie box by box."""
    lengths = dict.fromkeys(alike, 0)
    found: list[HeldBox] = []
    for plan in members:
        stretches = [one for one in flat.ranks[rank] if one.spread.name == plan.name]
        for number, piece in enumerate(plan.layout.pieces):
            whole = tuple(plan.shape) or (1,)
            each = [(box, at) for at in stretches for box in boxes_of(piece, whole, at.start, at.end)]
            for box, at in each or [(nothing(piece), stretches[0])]:
                fields = _fields(rule, piece, box, plan, alike, lengths)
                blocks = tuple(
                    list(range(box.origin[d], box.origin[d] + box.size[d])) for d in sorted(piece.block_dims)
                )
                where = flat.axes, seen(piece), flat.parts, None, blocks
                found.append(HeldBox(piece, *where, box=box, placed=at, number=number, fields=fields))
    return tuple(found), lengths


def _fields(
    rule: Any, piece: Any, box: Box, plan: Plan, alike: Mapping[str, bool], lengths: dict[str, int]
) -> dict[str, Field]:
    """Return the places of the box's parts of the state, and count them."""
    fields: dict[str, Field] = {}
    for key, extends in extents(rule, piece).items():
        if alike[key] or extends is None:
            fields[key] = None
            continue
        shape = tuple(n if along else 1 for n, along in zip(box.size, extends, strict=True))
        fields[key] = lengths[key], shape
        lengths[key] += prod(shape)
    return fields


def extents(rule: Any, piece: Any) -> dict[str, Kept | None]:
    """Return, for each of the rule's states, the dimensions of a piece that it extends along."""
    each = zip(rule.State._fields, piece_dims(rule, piece), strict=True)
    return {key: (not is_of_layer(rule, key),) if kept == () else kept for key, kept in each}
