"""The functions that the rule engine needs of a library: reading and writing of arrays, one by one and in lists."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from layerwise.engines import Job
from layerwise.rules.requests import Array, Functions, Scalar
from layerwise.storage.bit_views import BitFunctions
from layerwise.storage.formatted_arrays import FormattedArray


class Arrays(Protocol):
    """The reading and writing of a library's arrays."""

    @property
    def xp(self) -> Functions:
        """The namespace with the library's functions, which may overwrite arrays that a rule no longer needs."""

    @property
    def pure(self) -> Functions:
        """The same, for stored arrays that may still be needed."""

    @property
    def bits(self) -> BitFunctions:
        """The library's view of the bits of numbers."""

    def read(self, array: Array, like: Array) -> Array:
        """Return `array` in the dtype in which a step on `like` is computed, and on its device."""

    def copy(self, array: Array) -> Array:
        """Return a copy that may be overwritten."""

    def write(self, stored: Array, new: Array) -> None:
        """Round `new` into `stored`."""

    def kind(self, array: Array) -> Hashable:
        """Return the shape, dtype and device: arrays of one kind can be stacked."""

    def stack(self, arrays: Sequence[Array]) -> Array:
        """Return the arrays along a new last dimension."""

    def write_stack(self, stored: Sequence[Array], new: Array) -> None:
        """Round each entry along the last dimension of `new` into its place."""


class Lists(Protocol):
    """The arrays of several jobs of any shapes, which a library combines into one for a rule."""

    def __init__(self, jobs: Sequence[Job]) -> None: ...

    shape: tuple[int, ...]
    """As many dimensions as a request may name, and one more for the jobs."""

    @staticmethod
    def list_key(array: Array) -> Hashable:
        """Return the key that an array must share with others in its list."""

    def read(self, stored: Sequence[Array | FormattedArray]) -> Array:
        """Return one array of all jobs as one, in the dtype of the arithmetic."""

    def by_extension(self, stored: Sequence[FormattedArray]) -> bool:
        """Return whether arrays in a format are read and written one by one, by the compiled extension."""

    def encode(self, stored: Sequence[FormattedArray], new: Array, ts: Sequence[Scalar], skip: Array | None) -> None:
        """Write numbers in their format, at the step that each job takes."""

    def write(self, stored: Sequence[Array], new: Array) -> None:
        """Round it into the arrays of the jobs."""

    def joined_number(self, values: Sequence[Scalar]) -> Scalar:
        """Return a number of each job as one: a Python number if all are equal."""

    def num_entries(self, dims: tuple[int, ...]) -> Scalar:
        """Return the number of entries that each job's tensor has along some dimensions."""

    def give_back(self) -> None:
        """Give memory back that a step no longer needs."""
