"""The boxes of tensors that a flat buffer holds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from layerwise.core.plan import Held
from layerwise.storage.index import Index, index_of
from layerwise.torch.sharding._flat import Placed
from layerwise.torch.sharding._stretches import Box, Shape, Spread, seen

Field = tuple[int, Shape] | None  # where a box's part of a state begins, and its shape; None: as in the buffer


@dataclass(frozen=True, kw_only=True)
class HeldBox(Held):
    """A box of a tensor, of which a flat buffer holds a stretch; it is one job."""

    box: Box
    placed: Placed
    number: int  # of the piece
    fields: Mapping[str, Field] = field(compare=False)

    @property
    def whole(self) -> Hashable:
        """The tensor and the piece that it is a part of."""
        return self.spread, self.number

    @property
    def spread(self) -> Spread:
        return self.placed.spread

    def view(self, array: Any, kept: bool = True) -> Any:
        """Return its elements of the buffer, or of an array laid out like the buffer."""
        return self.box.view(self.placed.of(array))

    def of_state(self, key: str, array: Any) -> Any:
        """Return its part of a state."""
        place = self.fields[key]
        if place is None:
            return self.view(array)
        start, shape = place
        return array[start : start + prod(shape)].view(shape)

    def of_whole(self, array: Any, extends: Sequence[bool]) -> Any:
        """Return its part of a state of the whole tensor, which extends along some of the piece's dimensions."""
        shape = tuple(n if along else 1 for n, along in zip(seen(self.piece), extends, strict=True))
        each = zip(self.box.origin, self.box.size, extends, strict=True)
        return array.view(shape)[tuple(slice(at, at + n) if along else slice(0, 1) for at, n, along in each)]

    def index(self, whole: Callable[[], Index]) -> Index:
        part, box = self.piece.part, self.box
        one = part is not None and part.one is not None
        index = index_of((self.spread.shape or (1,)) if one else seen(self.piece))
        first = part.one[1] if one and part is not None and part.one is not None else 0
        starts = [at + (first if part is not None and d == part.axis else 0) for d, at in enumerate(box.origin)]
        return index[tuple(slice(at, at + n) for at, n in zip(starts, box.size, strict=True))]
