"""Stretches of tensors, and the boxes that make them up, in row-major order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from layerwise.core.plan import Box, PartSlices
from layerwise.layout.pieces import Piece
from layerwise.torch.sharding._cuts import cuttable_shape

Shape = tuple[int, ...]


class Stretch(NamedTuple):
    """A stretch of a flat buffer, which holds a part of a tensor.

    Attributes:
        name: The name of the tensor.
        shape: The shape of the whole tensor.
        start: The first element of the tensor in the stretch, counted in row-major order.
        end: The element after the last one.
        offset: The place in the buffer where they begin; None is right after the stretch before.
    """

    name: str
    shape: Shape
    start: int
    end: int
    offset: int | None = None


@dataclass(frozen=True, eq=False)
class SpreadTensor:
    """A tensor whose stretches lie on several ranks."""

    name: str
    shape: Shape
    ranks: tuple[tuple[Stretch, ...], ...]  # the stretches on each rank of the group, if any


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
