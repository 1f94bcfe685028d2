"""Arrays that share memory: engines write several at once, so each must have its own."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from types import SimpleNamespace
from typing import NamedTuple, TypeVar

import numpy as np

from layerwise.errors import ParameterError

Name = TypeVar("Name")
SEARCHED = 1 << 20  # offsets that are listed to see whether two are alike


class Lying(NamedTuple):
    """The place of an array, on whichever device: the numbers of NumPy's array interface, strides in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def span(self) -> tuple[int, int]:
        """The first byte and the one behind the last."""
        steps = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
        below, above = sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
        return self.address + below, self.address + above + self.itemsize

    @property
    def overlaps_itself(self) -> bool:
        """True if several elements share memory."""
        each = [(abs(s), n) for n, s in zip(self.shape, self.strides, strict=True) if n > 1]
        reach = self.itemsize
        for stride, n in sorted(each):
            if stride < reach:
                break
            reach += (n - 1) * stride
        else:
            return False
        return 0 not in self.shape and self._has_twins(each)

    def _has_twins(self, each: list[tuple[int, int]]) -> bool:
        if any(stride < self.itemsize for stride, _ in each):
            return True
        count = prod(n for _, n in each)
        if count > SEARCHED:
            low, high = self.span
            return high - low < count * self.itemsize
        offsets = np.zeros(1, np.int64)
        for stride, n in each:
            offsets = np.add.outer(offsets, np.arange(n) * stride).ravel()
        offsets.sort()
        return bool((np.diff(offsets) < self.itemsize).any())

    def shares(self, other: Lying) -> bool:
        """Return True if an element of one lies where an element of the other does."""
        return np.shares_memory(self._as_array(), other._as_array())

    def _as_array(self) -> np.ndarray:
        # NumPy compares places and reads nothing.
        interface = {
            "version": 3,
            "typestr": f"|V{self.itemsize}",
            "data": (self.address, True),
            "shape": self.shape,
            "strides": self.strides,
        }
        return np.asarray(SimpleNamespace(__array_interface__=interface))


def shared(arrays: Iterable[tuple[Name, Lying]]) -> tuple[Name, Name] | None:
    """Return two arrays that share memory, or None."""
    open_: list[tuple[int, Name, Lying]] = []  # those that end behind the start of the next
    held = [(*lying.span, name, lying) for name, lying in arrays if 0 not in lying.shape]
    for start, end, name, lying in sorted(held, key=lambda one: one[:2]):
        open_ = [other for other in open_ if other[0] > start]
        for _, other, there in open_:
            if there.shares(lying):
                return other, name
        open_.append((end, name, lying))
    return None


def check_distinct(arrays: Iterable[tuple[Name, Lying]], way_out: str) -> None:
    """Raise if parameters are tied: stepped under two names, one would move twice."""
    if found := shared(arrays):
        one, other = found
        raise ParameterError(
            f"{one!r} and {other!r} share memory, so they are one parameter and would be stepped twice. {way_out}"
        )
