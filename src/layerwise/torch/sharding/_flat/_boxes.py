"""The boxes that make up stretches of a tensor, in row-major order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from types import ModuleType

from layerwise.core.plan import Box, LocalPart, PartSlices, Places, Plan, Region
from layerwise.layout.pieces import Piece, piece_dims
from layerwise.rules.states import is_of_layer
from layerwise.torch.sharding._flat._buffers import FlatBuffer, SpreadTensor, Stretch

Shape = tuple[int, ...]


def boxes(shape: Shape, start: int, end: int, at: int = 0) -> Iterator[tuple[Box, PartSlices]]:
    """Yield the boxes of these elements of a tensor, and their places in a buffer where they begin at `at`.

    They are the end of a row, whole rows, and the start of a row; with more dimensions rows are divided in the same
    way.
    """
    for origin, size in _boxes(shape, start, end):
        yield Box(origin, size), PartSlices((), slice(at, at + prod(size)), size)
        at += prod(size)


def _boxes(shape: Shape, start: int, end: int) -> Iterator[tuple[Shape, Shape]]:
    if start >= end:
        return
    row = prod(shape[1:])
    first, last = -(-start // row), end // row  # the whole rows
    if len(shape) == 1:
        yield (start,), (end - start,)
    elif first > last:  # within one row
        yield from _in_row(shape, last, start - last * row, end - last * row)
    else:
        yield from _in_row(shape, first - 1, start - (first - 1) * row, row if start % row else 0)
        if first < last:
            yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
        yield from _in_row(shape, last, 0, end - last * row)


def _in_row(shape: Shape, row: int, start: int, end: int) -> Iterator[tuple[Shape, Shape]]:
    return (((row, *origin), (1, *size)) for origin, size in _boxes(shape[1:], start, end))


def boxes_of(piece: Piece, stretch: Stretch) -> list[tuple[Box, PartSlices]]:
    """Return the boxes of a piece of a tensor in a stretch of the tensor, and their places in its buffer."""
    part, run = piece.part, (stretch.start, stretch.end, stretch.offset or 0)
    if part is None or part.one is None:  # blocks of one size are one more dimension, in the same order
        return list(boxes(cuttable_shape(piece), *run))
    _, low, high, _ = part.one
    each = (_within(box, place, part.axis, low, high) for box, place in boxes(stretch.shape, *run))
    return [box for box in each if box is not None]


def cuttable_shape(piece: Piece) -> Shape:
    """Return the shape of a piece; without dimensions, it gets one that can be cut."""
    return piece.shape or (1,)


def _within(box: Box, place: PartSlices, axis: int, low: int, high: int) -> tuple[Box, PartSlices] | None:
    """Return the part of a box that lies in a block, with indices of the block."""
    first = box.origin[axis]
    start, stop = max(first, low), min(first + box.size[axis], high)
    if start >= stop:
        return None
    size = tuple(stop - start if d == axis else n for d, n in enumerate(box.size))
    origin = tuple(start - low if d == axis else x for d, x in enumerate(box.origin))
    entries = (slice(None),) * axis + (slice(start - first, stop - first),)
    return Box(origin, size), PartSlices(entries, place.run, place.shape)


def empty_box(piece: Piece) -> tuple[Box, PartSlices]:
    """Return a box without elements."""
    none = (0,) * len(cuttable_shape(piece))
    return Box(none, none), PartSlices((), slice(0, 0), none)


def gaps(numel: int, runs: Sequence[tuple[int, int, int]]) -> str:
    """Describe the mistake in the stretches of a tensor, each with its rank; empty if each element is held once."""
    at, before = 0, -1
    for start, end, rank in sorted(run for run in runs if run[0] < run[1]):
        if start > at:
            return f"no rank holds its elements {at} to {start}"
        if start < at:
            both = f"ranks {before} and {rank} both hold" if before != rank else f"rank {rank} holds twice"
            return f"{both} its elements {start} to {min(at, end)}"
        at, before = end, rank
    return f"no rank holds its elements {at} to {numel}" if at < numel else ""


def parts_in_buffer(
    rule: ModuleType, members: Sequence[Plan], flat: FlatBuffer
) -> tuple[tuple[LocalPart, ...], dict[str, int]]:
    """Return the boxes in this rank's buffer, each of which is a job, and the lengths of state that lies box by box.

    A state that has a number for each element of all tensors of a buffer lies as the buffer does. Any other is the
    boxes' parts of it, one after the other: of row statistics those of the box's rows, of column statistics those of
    its columns. So every rank that holds a part of a row has that row's number.
    """
    lengths = {key: 0 for key in rule.State._fields if not all(one.elementwise[key] for one in members)}
    found: list[LocalPart] = []
    for i, (plan, spread) in enumerate(zip(members, flat.spreads, strict=True)):
        for number, piece in enumerate(plan.layout.pieces):
            each = [one for stretch in spread.ranks[flat.rank] for one in boxes_of(piece, stretch)]
            for box, place in each or [empty_box(piece)]:
                starts = ((box.origin[d], box.size[d]) for d in sorted(piece.block_dims))
                blocks = tuple(list(range(at, at + n)) for at, n in starts)
                where = (
                    flat.axes,
                    cuttable_shape(piece),
                    flat.parts,
                    blocks,
                    place,
                    _places(rule, piece, box.size, lengths),
                )
                regions = partial(_regions_of_boxes, piece, spread)
                found.append(LocalPart(piece, number, i, *where, box, spread, regions, flat.replicas))
    return tuple(found), lengths


def _regions_of_boxes(piece: Piece, spread: SpreadTensor, places: Places, dims: Shape) -> list[Region]:
    """Return the part of a piece on the rank at this place of the group."""
    boxes = [box for stretch in spread.ranks[places[0]] for box, _ in boxes_of(piece, stretch)]
    return [box.region for box in boxes]


def _places(rule: ModuleType, piece: Piece, size: Shape, lengths: dict[str, int]) -> dict[str, PartSlices]:
    """Return the places of a box's parts of the state, and count them."""
    places = {}
    for key, extends in zip(rule.State._fields, piece_dims(rule, piece), strict=True):
        if key in lengths and extends is not None:
            each = zip(size, extends or (not is_of_layer(rule, key),), strict=True)
            shape = tuple(n if along else 1 for n, along in each)
            places[key] = PartSlices((), slice(lengths[key], lengths[key] + prod(shape)), shape)
            lengths[key] += prod(shape)
    return places
