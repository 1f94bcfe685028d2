"""A library's arrays, as the core creates, reads and writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from layerwise.engines.arrays import Arrays
from layerwise.rules.requests import Array

LOW = ("float16", "bfloat16")
WIDE = ("float32", "float64")
FLOATING = (*LOW, *WIDE)
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def arithmetic_dtype(dtype: str) -> str:
    """Return the dtype of the arithmetic and of the state: at least float32."""
    return "float64" if dtype == "float64" else "float32"


class UnshardedArrays:
    """The part of a library whose arrays are whole in one process."""

    zeros: Callable[[tuple[int, ...], str, Array], Array]  # as in a library

    def zeros_like(self, x: Array, dtype: str) -> Array:
        return self.zeros(tuple(x.shape), dtype, x)

    def local_part(self, x: Array) -> Array:
        return x

    def like(self, x: Array, here: Array) -> Array:
        return here

    def row_chunks(self, *arrays: Array) -> Iterator[tuple[Array, ...]]:
        yield arrays


class Library(Arrays, Protocol):
    """The functions that the core needs of a library, besides those for the rule engine. Dtypes have NumPy's names."""

    def dtype(self, x: Array) -> str:
        """Return the name of an array's dtype."""

    def local_part(self, x: Array) -> Array:
        """Return the part of an array that this process holds."""

    def like(self, x: Array, here: Array) -> Array:
        """Return such a part in the form of `x`."""

    def zeros(self, shape: tuple[int, ...], dtype: str, beside: Array) -> Array:
        """Return zeros on the device of `beside`."""

    def zeros_like(self, x: Array, dtype: str) -> Array:
        """Return zeros with the memory layout of `x`."""

    def cast(self, x: Array, dtype: str) -> Array:
        """Return a copy in this dtype."""

    def row_chunks(self, *arrays: Array) -> Iterator[tuple[Array, ...]]:
        """Yield views of a few rows of the arrays at a time, so that intermediate results take little memory."""
