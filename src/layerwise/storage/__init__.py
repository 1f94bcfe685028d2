"""Storage formats: plain numbers, rounded at random, split in two, or in 8 bits.

A rule computes in float32 or float64 and does not depend on storage. A storage format defines how a stored array is
read into that arithmetic and written back. Here it is defined for arrays of any library. Functions of a single number
are printed for kernels, whose loops are in csrc/kernels/formats.hpp and engines/gpu/kernels/formats.py.

A step computes with unrounded numbers; only the next step reads rounded ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from layerwise.rules.requests import Array
from layerwise.storage.bits import Key
from layerwise.storage.index import Index

WEIGHTS, STATE = "", "state"  # whose random bits, in their keys


class CodedFormat(NamedTuple):
    """A format of state: a code for each number, and a float32 scale for each group of 64 codes."""

    name: str  # its name in `state_dtype`
    suffix: str  # the suffix of a field's name for its scales in checkpoints
    dtypes: tuple[str, str]  # dtypes of codes, signed and unsigned; JAX recognizes formats by them
    encode: Callable[..., tuple[Array, Array]]  # codes as floats and scales, of rows of numbers (quantized_groups.py)
    decode: Callable[..., Array]  # numbers, which grow as their scales do

    def dtype(self, signed: bool) -> str:
        """Return the dtype of codes for numbers that may be negative, or for numbers that are not."""
        return self.dtypes[not signed]


class Format(NamedTuple):
    """The format of one stored array, besides its dtype."""

    beside: Array = None  # the remainder of split weights, or the scales of codes
    key: Key | None = None  # for rounding at random; None rounds to nearest
    coded: CodedFormat | None = None  # the format of the codes; None if the array stores numbers


@dataclass(frozen=True)
class JobFormats:
    """The formats of a job's arrays: the weights, then each field of the state. None is a plain array, rounded to
    nearest.
    """

    formats: tuple[Format | None, ...]
    index: Index  # the place of the job's elements in the whole tensor
    row_dims: int = 1  # how many leading dimensions count rows, each with groups of its own

    @property
    def given(self) -> list[Format]:
        """The formats of arrays that are not plain."""
        return [one for one in self.formats if one is not None]

    @property
    def beside(self) -> list[Array]:
        """The arrays stored in addition to the main ones, in order."""
        return [one.beside for one in self.given if one.beside is not None]

    def mapped(self, change: Callable[[Array], Array]) -> JobFormats:
        """Return the same formats with all additional arrays changed."""
        each = ((one, None if one is None or one.beside is None else change(one.beside)) for one in self.formats)
        return replace(self, formats=tuple(one and one._replace(beside=beside) for one, beside in each))
