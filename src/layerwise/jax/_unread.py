"""Stored arrays that a rule reads later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from layerwise.jax._bits import BITS
from layerwise.storage import Format
from layerwise.storage.bits import Key
from layerwise.storage.coded import coded_of
from layerwise.storage.index import index_of
from layerwise.storage.stored import Stored


@partial(jax.tree_util.register_dataclass, data_fields=("array", "beside"), meta_fields=("view",))
@dataclass(frozen=True)
class Unread:
    """A stored array, and the piece of it that a rule sees. Every run of the rule reads it, so none keeps numbers."""

    array: Any
    beside: Any
    view: Callable[[Any], Any]

    def read(self) -> Any:
        """Return the numbers in float32."""
        return self.view(stored(self.array, self.beside).read())


def stored(array: Any, beside: Any = None, key: Key | None = None, places: Any = None) -> Stored:
    """Return an array in its format; `places` are those of its elements, where random bits are drawn for them."""
    shape, form = tuple(array.shape), Format(beside, key, coded_of(array.dtype.name))
    return Stored(array, form, places or index_of(shape), min(1, len(shape) - 1), BITS)
