"""The plan of one tensor's step: its settings, its layout, and the pieces of it that are here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from layerwise.core.library import Array, Library
from layerwise.engines import Job
from layerwise.hyper import Hyper
from layerwise.layout import Kept, Layout, Piece, elementwise, kept_dims
from layerwise.names import Name
from layerwise.storage import Storage
from layerwise.storage.forms import CUT_BY_BLOCKS, blocks_cut_groups, scales_of
from layerwise.storage.index import Index, index_of
from layerwise.telemetry import summary

if TYPE_CHECKING:
    from typing_extensions import Self

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """The local part of one piece of a tensor, which is one job."""

    piece: Piece
    axes: tuple[tuple[Any, int], ...] = ()  # over which it is cut, in the dimensions of the piece
    shape: Shape | None = None  # of the whole piece, if it is cut
    parts: int = 1
    along: slice | None = None  # the place of the block in what is here, if it is the blocks' axis that is cut
    blocks: tuple[list[int], ...] = ()  # which blocks are here, if each is whole somewhere

    def view(self, array: Array, kept: bool = True) -> Array:
        """Return the piece's part of an array that extends along the blocks' axis, or has one entry a block."""
        if self.along is None:
            return self.piece.view(array)
        part: Any = self.piece.part  # one block: those along an axis that is cut are laid out one by one
        number = part.one[0]
        place = self.along if kept else slice(number, number + 1)
        return array[(slice(None),) * part.axis + (place,)]

    def index(self, whole: Callable[[], Index]) -> Index:
        """Return the places of its elements in the tensor, given those of the local part."""
        found: Index = self.view(whole())
        return found

    def everywhere(self, measured: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the measurements of all blocks, with nan for those on other ranks."""
        if not self.blocks:
            return measured
        found = {}
        for key, x in measured.items():
            found[key] = np.full([self.piece.shape[d] for d in sorted(self.piece.block_dims)], np.nan)
            found[key][np.ix_(*self.blocks)] = np.reshape(x, tuple(map(len, self.blocks))) if np.ndim(x) else x
        return found


@dataclass(frozen=True)
class Plan:
    """The plan of one tensor's step."""

    name: Name
    rule: Any
    h: Hyper
    shape: Shape
    layout: Layout
    held: tuple[Held, ...]
    state_shapes: dict[str, Shape | None]  # of the whole of it
    kept: dict[str, Kept | None]
    elementwise: dict[str, bool]  # whether a part of the state has a number for each element

    @classmethod
    def of(cls, name: Name, rule: Any, h: Hyper, shape: Shape, layout: Layout, **more: Any) -> Self:
        """Return the plan of a tensor that is whole here."""
        held = tuple(map(Held, layout.pieces))
        return cls(name, rule, h, shape, layout, held, *fields_of(rule, layout, len(shape)), **more)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "rule": self.rule.__name__}  # modules cannot be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, rule=import_module(state["rule"]))

    @property
    def key(self) -> str:
        """The name by which random bits are drawn."""
        return str(self.name)

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The parts of the state that there are."""
        return tuple(field for field, shape in self.state_shapes.items() if shape is not None)

    @property
    def itself(self) -> bool:
        """True if the unchanged tensor is the only job."""
        return len(self.held) == 1 and self.layout.pieces[0].part is None

    @property
    def smallest(self) -> Shape:
        """The shape of the smallest tensor that is stored together."""
        return self.shape

    def member(self, one: Any) -> Plan:
        """Return the plan of the tensor that this is a part of."""
        return self

    def why_not_grouped(self) -> str:
        """Return the reason why state cannot be stored in groups of 8 bits, or an empty string."""
        return CUT_BY_BLOCKS if blocks_cut_groups(self.shape, [one.piece.part for one in self.held]) else ""

    def zeros(self, lib: Library, field: str, p: Array, dtype: str) -> Array:
        """Return a new part of the state."""
        if self.elementwise[field]:
            return lib.zeros_like(p, dtype)
        return lib.zeros(self.state_shapes[field] or (), dtype, p)

    def scales(self, lib: Library, p: Array) -> Array:
        """Return new scales of numbers in groups."""
        return lib.zeros(scales_of(self.shape), "float32", p)

    def index(self, p: Array) -> Index:
        """Return the places of the local part of the tensor in it."""
        return index_of(self.shape)

    def jobs(
        self, lib: Library, p: Array, arrays: Mapping[str, Array], storage: Callable[[Held], Storage | None]
    ) -> Iterator[Job]:
        """Yield the jobs of the tensor, given what of it is stepped and its state."""
        stored = [lib.here(arrays[key]) if key in self.fields else None for key in self.kept]
        here = lib.here(p)
        for one in self.held:
            if one.piece.part is None:
                made, view = self.rule.State(*stored), here
            else:
                made, view = self._state_of(one, stored), one.view(here)
            cut = one.axes, None if one.along is None else one.piece.part
            where = one.piece.block_dims, one.shape, one.parts, cut
            yield Job(self.rule, one.piece.h, view, made, *where, storage(one))

    def _state_of(self, one: Held, stored: Sequence[Array | None]) -> Any:
        """Return the state of one of several pieces."""
        axis = one.piece.part.axis if one.piece.part is not None else 0
        each = zip(stored, self.kept.values(), strict=True)
        views = (None if x is None else one.view(x, kept is None or kept[axis]) for x, kept in each)
        return self.rule.State(*views)

    def measured(self, each: Iterator[Mapping[str, Any]]) -> Iterator[tuple[Name, dict[str, Any]]]:
        """Yield the names of tensors with the jobs' measurements of them."""
        yield self.name, summary([one.everywhere(next(each)) for one in self.held], self.layout.pieces)


def fields_of(rule: Any, layout: Layout, ndim: int) -> tuple[dict[str, Shape | None], dict[str, Kept | None], Any]:
    """Return, by the fields of the rule's state, their shapes, what dimensions they extend along, and whether all."""
    fields = rule.State._fields
    shapes = dict(zip(fields, layout.state_shapes(), strict=True))
    kept = dict(zip(fields, kept_dims(rule, layout, ndim), strict=True))
    return shapes, kept, elementwise(rule, layout, ndim)
