"""The parts of tensors that a flat buffer holds: each box is a job.

A state that has a number for each element of all tensors of a buffer lies as the buffer does. Any other is the boxes'
parts of it, one after the other: of row statistics those of the box's rows, of column statistics those of its columns.
So every rank that holds a part of a row has that row's number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from layerwise.core.plan import LocalPart, Place, Places, Plan, Region
from layerwise.layout.pieces import Piece, piece_dims
from layerwise.rules.states import is_of_layer
from layerwise.torch.sharding._flat._boxes import boxes_of, nothing, seen
from layerwise.torch.sharding._flat._buffers import Flat, Spread

Shape = tuple[int, ...]


def parts_in_buffer(rule: Any, members: Sequence[Plan], flat: Flat) -> tuple[tuple[LocalPart, ...], dict[str, int]]:
    """Return the boxes in this rank's buffer, and the lengths of those parts of its state that lie box by box."""
    lengths = {key: 0 for key in rule.State._fields if not all(one.elementwise[key] for one in members)}
    found: list[LocalPart] = []
    for i, (plan, spread) in enumerate(zip(members, flat.spreads, strict=True)):
        for number, piece in enumerate(plan.layout.pieces):
            each = [one for stretch in spread.ranks[flat.rank] for one in boxes_of(piece, stretch)]
            for box, place in each or [nothing(piece)]:
                starts = ((box.origin[d], box.size[d]) for d in sorted(piece.block_dims))
                blocks = tuple(list(range(at, at + n)) for at, n in starts)
                where = flat.axes, seen(piece), flat.parts, blocks, place, _places(rule, piece, box.size, lengths)
                regions = partial(_regions_of_boxes, piece, spread)
                found.append(LocalPart(piece, number, i, *where, box, spread, regions, flat.replicas))
    return tuple(found), lengths


def _regions_of_boxes(piece: Piece, spread: Spread, places: Places, dims: Shape) -> list[Region]:
    """Return what the rank at this place of the group has of a piece."""
    boxes = [box for stretch in spread.ranks[places[0]] for box, _ in boxes_of(piece, stretch)]
    return [box.region for box in boxes]


def _places(rule: Any, piece: Piece, size: Shape, lengths: dict[str, int]) -> dict[str, Place]:
    """Return the places of a box's parts of the state, and count them."""
    places = {}
    for key, extends in zip(rule.State._fields, piece_dims(rule, piece), strict=True):
        if key in lengths and extends is not None:
            each = zip(size, extends or (not is_of_layer(rule, key),), strict=True)
            shape = tuple(n if along else 1 for n, along in each)
            places[key] = Place((), slice(lengths[key], lengths[key] + prod(shape)), shape)
            lengths[key] += prod(shape)
    return places
