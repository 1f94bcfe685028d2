"""A library's arrays, as the core makes, reads and writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from layerwise.storage.stored import Bits

Array = Any  # of the library
LOW = ("float16", "bfloat16")
WIDE = ("float32", "float64")
FLOATING = (*LOW, *WIDE)


def computing(dtype: str) -> str:
    """Return the dtype of the arithmetic and of the state: at least float32."""
    return "float64" if dtype == "float64" else "float32"


class Whole:
    """The part of a library whose arrays are whole in one process."""

    def here(self, x: Array) -> Array:
        return x

    def like(self, x: Array, here: Array) -> Array:
        return here

    def rows(self, *arrays: Array) -> Iterator[tuple[Array, ...]]:
        yield arrays


class Library(Protocol):
    """What the core needs of a library. Dtypes have NumPy's names."""

    @property
    def bits(self) -> Bits:
        """The library's view of the bits of numbers."""

    def dtype(self, x: Array) -> str:
        """Return the name of an array's dtype."""

    def here(self, x: Array) -> Array:
        """Return the part of an array that this process holds."""

    def like(self, x: Array, here: Array) -> Array:
        """Return such a part in the form of `x`."""

    def zeros(self, shape: tuple[int, ...], dtype: str, beside: Array) -> Array:
        """Return zeros on the device of `beside`."""

    def zeros_like(self, x: Array, dtype: str) -> Array:
        """Return zeros that lie in memory as `x` does."""

    def cast(self, x: Array, dtype: str) -> Array:
        """Return a copy in this dtype."""

    def write(self, stored: Array, new: Array) -> None:
        """Round `new` into `stored`."""

    def rows(self, *arrays: Array) -> Iterator[tuple[Array, ...]]:
        """Yield views of the arrays' rows, some at a time, so that what is made of them takes little memory."""
