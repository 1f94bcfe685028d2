"""A library's arrays, as the rule engine reads and writes them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from layerwise.rules.asks import Array
from layerwise.storage.stored import Bits


class Arrays(Protocol):
    """The reading and writing of a library's arrays."""

    @property
    def xp(self) -> Any:
        """The namespace with the library's functions, which may overwrite arrays that a rule no longer needs."""

    @property
    def pure(self) -> Any:
        """The same, for stored arrays that may still be needed."""

    @property
    def bits(self) -> Bits:
        """The library's view of the bits of numbers."""

    def read(self, array: Array, like: Array) -> Array:
        """Return `array` in the dtype in which a step on `like` is computed, and on its device."""

    def copy(self, array: Array) -> Array:
        """Return a copy, which may be overwritten."""

    def write(self, stored: Array, new: Array) -> None:
        """Round `new` into `stored`."""

    def kind(self, array: Array) -> Hashable:
        """Return the shape, dtype and device: arrays of one kind can be stacked."""

    def stack(self, arrays: Sequence[Array]) -> Array:
        """Return the arrays along a new last dimension."""

    def write_stack(self, stored: Sequence[Array], new: Array) -> None:
        """Round each entry along the last dimension of `new` into its place."""
