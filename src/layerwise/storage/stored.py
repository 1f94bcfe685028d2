"""Arrays in a storage format, as the rule engine reads, slices and writes them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

from layerwise.storage import Format, Storage, groups, weights
from layerwise.storage.bits import WORD, at_step, random, turned
from layerwise.storage.index import Index


class Bits(Protocol):
    """A library's view of the bits of numbers, and its other functions that formats need."""

    xp: Any
    word: Any  # the lower 32 bits of integers
    integers: Any  # of floating numbers, towards zero
    as_floats: Any  # integers to float32
    bits: Any  # of float32, as integers
    floats: Any  # the inverse
    shifted: Any  # integers, which may be negative, to the left
    where: Any

    kind: Any  # of an array: "bf16", "f16", "codes" for 8 bits, or "" for others
    indices: Any  # the lower and the upper 32 bits of the numbers of an index, beside an array
    step: Any  # the lower and the upper 32 bits of a step that is an array


@dataclass(frozen=True)
class Stored:
    """One array with its format."""

    array: Any
    format: Format
    index: Index
    row_dims: int
    b: Bits

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def coded(self) -> bool:
        return bool(self.b.kind(self.array) == "codes")

    def at(self, place: tuple[slice, ...]) -> Stored:
        """Return a slice that has whole groups along the first dimension."""
        beside = self.format.beside
        if self.coded:
            cut = place[0]
            if self.row_dims == 0:
                each = prod(self.shape[1:])
                cut = slice(cut.start * each // groups.GROUP, groups.count(cut.stop * each))
            beside = beside[cut]
        elif beside is not None:
            beside = beside[place]
        form = self.format._replace(beside=beside)
        return replace(self, array=self.array[place], index=self.index[place], format=form)

    def read(self) -> Any:
        """Return the numbers in float32."""
        b, beside = self.b, self.format.beside
        if self.coded:
            rows, length = self._matrix()
            codes = b.as_floats(self.array).reshape(rows, length)
            scale = beside.reshape(rows, groups.count(length))
            return groups.decode(b.xp, codes, scale, self.format.signed).reshape(self.shape)
        p = b.as_floats(self.array)
        if beside is None:
            return p
        join = weights.join_bf16 if b.kind(self.array) == "bf16" else weights.join_f16
        return join(b, p, b.integers(beside), self._kept())

    def encode(self, x: Any, t: Any) -> tuple[Any, Any]:
        """Return the numbers to store, at step t, and those to store beside them or None."""
        b = self.b
        if self.coded:
            rows, length = self._matrix()
            bits = self._random(t)
            drawn = None if bits is None else groups.fraction(b, bits).reshape(rows, length)
            codes, scale = groups.encode(b.xp, b.as_floats(x).reshape(rows, length), self.format.signed, drawn)
            return codes.reshape(self.shape), scale.reshape(self.format.beside.shape)
        x, drawn, bf16 = b.as_floats(x), self._random(t), b.kind(self.array) == "bf16"
        if self.format.beside is not None:
            split = weights.split_bf16 if bf16 else weights.split_f16
            return split(b, x, self._kept(), drawn if self._kept() == 8 else None)
        return (x if drawn is None else (weights.round_bf16 if bf16 else weights.round_f16)(b, x, drawn)), None

    def _matrix(self) -> tuple[int, int]:
        return prod(self.shape[: self.row_dims]), prod(self.shape[self.row_dims :])

    def _kept(self) -> int:
        return 8 if self.b.kind(self.format.beside) == "codes" else 16

    def _random(self, t: Any) -> Any:
        if self.format.key is None:
            return None
        low, high = self.b.indices(self.index, self.array)
        step = (t & WORD, t >> 32) if isinstance(t, int) else self.b.step(t)
        if self.coded:
            return turned(self.format.key, step[0], low, high, self.b.word)
        return random(at_step(self.format.key, step, self.b.word), low, high, self.b.word)


def in_format(b: Bits, array: Any, which: int, storage: Storage | None) -> Any:
    """Return an array with its format, or unchanged if it is plain; `which` counts the weights, then the state."""
    one = None if storage is None or array is None else storage.formats[which]
    if one is None or storage is None:
        return array
    return Stored(array, one, storage.index, storage.row_dims, b)


def has_format(stored: Any) -> bool:
    """Return True for an array in a format, or a tuple of such."""
    return isinstance(stored[0] if isinstance(stored, tuple) else stored, Stored)


def numbers(stored: Any) -> Any:
    """Return an array as numbers."""
    return stored.read() if isinstance(stored, Stored) else stored


def is_grouped(storage: Storage | None) -> bool:
    """Return True if a part of the state is in groups, which are not cut."""
    return storage is not None and any(one is not None and one.beside is not None for one in storage.formats[1:])


def formats_of(b: Bits, storage: Storage | None) -> Hashable:
    """Return the key that formats of arrays must share to be stepped as one."""
    each = () if storage is None else storage.formats
    return tuple(one and (one.key is None, one.signed, one.beside is not None and b.kind(one.beside)) for one in each)
