"""The index of each element of a part in the whole tensor, in row-major order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from layerwise.rules.requests import Array

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Index:
    """The indices of a part's elements in the whole tensor, as integers.

    They are sliced and reshaped like the part itself. For a dimension along which the part is not contiguous,
    `scattered` holds the index of each entry, and the stride is 0.
    """

    shape: Shape
    strides: Shape
    offset: int = 0
    scattered: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def is_row(self) -> bool:
        """True if the numbers are consecutive."""
        rows = index_of(self.shape).strides
        each = zip(self.shape, self.strides, rows, strict=True)
        return not self.scattered and all(n == 1 or own == row for n, own, row in each)

    def __getitem__(self, place: slice | tuple[slice, ...]) -> Index:
        shape, offset, scattered = list(self.shape), self.offset, dict(self.scattered)
        for d, cut in enumerate(place if isinstance(place, tuple) else (place,)):
            start, stop, _ = cut.indices(shape[d])
            shape[d] = max(0, stop - start)
            offset += start * self.strides[d]
            if d in scattered:
                scattered[d] = scattered[d][start:stop]
        return Index(tuple(shape), self.strides, offset, tuple(scattered.items()))

    def reshape(self, shape: Shape) -> Index:
        """Return the same indices with one dimension split into two: blocks, and the entries of a block."""
        kept, n = dict(self.scattered), len(self.shape)
        # Several dimensions may fit if one of the two has length 1: the numbers are the same.
        fits = (d for d in range(n) if (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :]) == self.shape)
        d = next((d for d in fits if d not in kept), None)
        if d is None:
            raise ValueError("blocks of a part that is not contiguous are stepped one by one")
        strides = (*self.strides[:d], self.strides[d] * shape[d + 1], *self.strides[d:])
        scattered = tuple((i + (i > d), at) for i, at in self.scattered)
        return Index(shape, strides, self.offset, scattered)

    def numbers(self, arange: Callable[[int], Array], asarray: Callable[[Sequence[int]], Array]) -> Array:
        """Return the numbers themselves, by a library's functions for integers."""
        found: Array = self.offset
        for d, (n, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            along = dict(self.scattered).get(d)
            one = arange(n) * stride if along is None else asarray(along)
            found = found + one.reshape((n,) + (1,) * (len(self.shape) - d - 1))
        return found


def index_of(whole: Sequence[int]) -> Index:
    """Return the index of a whole tensor."""
    shape = tuple(whole)
    return Index(shape, tuple(prod(shape[d + 1 :]) for d in range(len(shape))))


def part_of(whole: Sequence[int], along: Mapping[int, Sequence[int]]) -> Index:
    """Return the index of the part with these entries along some of the tensor's dimensions."""
    index = index_of(whole)
    for d, entries in along.items():
        start = entries[0] if entries else 0
        if list(entries) == list(range(start, start + len(entries))):
            index = index[(slice(None),) * d + (slice(start, start + len(entries)),)]
        else:
            scattered = (*index.scattered, (d, tuple(at * index.strides[d] for at in entries)))
            shape = (*index.shape[:d], len(entries), *index.shape[d + 1 :])
            strides = (*index.strides[:d], 0, *index.strides[d + 1 :])
            index = Index(shape, strides, index.offset, scattered)
    return index
