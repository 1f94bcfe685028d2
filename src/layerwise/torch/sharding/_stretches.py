"""Stretches of tensors in row-major order, as boxes along the tensors' dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from layerwise.core.plan import Box, Place
from layerwise.layout import Piece

Shape = tuple[int, ...]


class Placed(NamedTuple):
    """Some entries along each dimension of a tensor, and their place in a buffer."""

    origin: Shape
    size: Shape
    place: Place


def boxes(shape: Shape, start: int, end: int, at: int = 0) -> Iterator[Placed]:
    """Yield the boxes that these elements of a tensor make, in their order, given where they begin in a buffer.

    They are the end of a row, whole rows and the start of a row; of more dimensions rows are cut in the same way.
    """
    for origin, size in _boxes(shape, start, end):
        yield Placed(origin, size, Place((), slice(at, at + prod(size)), size))
        at += prod(size)


def _boxes(shape: Shape, start: int, end: int) -> Iterator[tuple[Shape, Shape]]:
    if start >= end:
        return
    row = prod(shape[1:])
    first, last = -(-start // row), end // row  # the rows that are whole
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


def boxes_of(piece: Piece, whole: Shape, start: int, end: int, at: int = 0) -> list[Placed]:
    """Return the boxes of a piece of a tensor that consist of these elements of the tensor."""
    part = piece.part
    if part is None or part.one is None:  # blocks of one size are one dimension more, in the same order
        return list(boxes(seen(piece), start, end, at))
    _, low, high, _ = part.one
    each = (_within(box, part.axis, low, high) for box in boxes(whole or (1,), start, end, at))
    return [box for box in each if box is not None]


def seen(piece: Piece) -> Shape:
    """Return the shape of a piece, with a dimension to be cut along if it has none."""
    return piece.shape or (1,)


def _within(box: Placed, axis: int, low: int, high: int) -> Placed | None:
    """Return the part of a box that lies in a block, in the block's own places."""
    first = box.origin[axis]
    start, stop = max(first, low), min(first + box.size[axis], high)
    if start >= stop:
        return None
    size = tuple(stop - start if d == axis else n for d, n in enumerate(box.size))
    origin = tuple(start - low if d == axis else x for d, x in enumerate(box.origin))
    entries = (slice(None),) * axis + (slice(start - first, stop - first),)
    return Placed(origin, size, Place(entries, box.place.run, box.place.shape))


def nothing(piece: Piece) -> Placed:
    """Return a box without elements."""
    none = (0,) * len(seen(piece))
    return Placed(none, none, Place((), slice(0, 0), none))


@dataclass(frozen=True, eq=False)
class Spread:
    """A tensor whose stretches lie on several ranks."""

    name: str
    shape: Shape
    runs: tuple[tuple[tuple[int, int], ...], ...]  # of each rank of the group: first elements, and those after the last

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def described(self) -> tuple[Any, ...]:
        return self.name, self.shape, self.runs


class Cells:
    """The numbers that a request's total has: one for each entry along the dimensions that it does not run over."""

    def __init__(self, shape: Shape, dims: Iterable[int], once: Iterable[int]) -> None:
        """Count as one number what lies along `dims`, which are added up, and along `once`, where numbers repeat."""
        self._dims, self._once = {*dims, *once}, tuple(once)
        self.shape = tuple(1 if d in self._dims else n for d, n in enumerate(shape))

    def of(self, box: Box | Placed) -> np.ndarray:
        """Return the numbers of the cells to which a box adds, in its own order."""
        entries = [
            np.arange(origin, origin + n) if d not in self._dims else np.zeros(1, np.int64)
            for d, (origin, n) in enumerate(zip(box.origin, box.size, strict=True))
        ]
        found: np.ndarray = np.zeros((1,) * len(entries), np.int64)
        for d, (along, length) in enumerate(zip(entries, self.shape, strict=True)):
            found = found * length + along.reshape((-1,) + (1,) * (len(entries) - d - 1))
        return found.ravel()

    def counts(self, box: Box) -> bool:
        """Return True if a box is the one, among those with the same numbers, that adds them."""
        return all(box.origin[d] == 0 for d in self._once)


def shared(spread: Spread, piece: Piece, dims: Shape, once: Shape) -> np.ndarray:
    """Return the cells of a request to which several ranks add, and a single one: all ranks then know the number."""
    cells = Cells(seen(piece), dims, once)
    if prod(cells.shape) == 1:
        return np.zeros(1, np.int64)
    ranks = np.zeros(prod(cells.shape), np.int32)
    for runs in spread.runs:
        touched = [cells.of(box) for run in runs for box in boxes_of(piece, spread.shape, *run)]
        if touched:
            ranks[np.unique(np.concatenate(touched))] += 1
    return np.flatnonzero(ranks > 1)


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
