"""The functions that formats need of a library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from layerwise.rules.requests import Array, Functions, Scalar
from layerwise.storage.bits import OfArray
from layerwise.storage.index import Index


class BitFunctions(Protocol):
    """A library's view of the bits of numbers, and other functions that formats need."""

    xp: Functions
    word: OfArray  # the lower 32 bits of integers
    integers: OfArray  # of floating-point numbers, towards zero
    as_floats: OfArray  # integers to float32
    bits: OfArray  # of float32, as integers
    floats: OfArray  # the inverse
    shifted: Callable[[Array, int], Array]  # of integers, which may be negative, to the left
    where: Callable[[Array, Scalar, Scalar], Array]

    dtype: Callable[[Array], str]  # the name of an array's dtype
    indices: Callable[[Index, Array], tuple[Array, Array]]  # the lower and the upper 32 bits of an index, for an array
    step: Callable[[Array], tuple[Array, Array]]  # the lower and the upper 32 bits of a step that is an array
    # For libraries whose arrays the extension reads: create a float32 array like another; record that arrays were
    # written.
    empty: OfArray
    written: Callable[[Sequence[Array]], None]
