"""The plan of one tensor's step: its settings, its layout, and its local pieces."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from layerwise.core.library import Library, arithmetic_dtype
from layerwise.engines import Stats, TensorId
from layerwise.engines.measurements import join_pieces
from layerwise.layout.pieces import Kept, Layout, Piece, elementwise, kept_dims
from layerwise.options.by_name import Name
from layerwise.options.settings import Hyper
from layerwise.rules.products import HALVES
from layerwise.rules.requests import Array
from layerwise.storage.index import Index, index_of
from layerwise.storage.state_dtypes import CUT_BY_BLOCKS, blocks_cut_groups, scales_of

if TYPE_CHECKING:
    from typing_extensions import Self

Shape = tuple[int, ...]
Region = tuple[Any, ...]  # an index of each dimension of a piece
Places = tuple[int, ...]  # the place of a rank along axes
P = TypeVar("P", bound="Plan")


@dataclass(frozen=True)
class PartSlices:
    """The place of a part in a local array: a contiguous run, seen in a shape, and then some entries of each
    dimension.
    """

    entries: tuple[slice, ...] = ()
    run: slice | None = None  # None: the array as it is
    shape: Shape = ()

    def take_from(self, array: Array) -> Array:
        found = array if self.run is None else array[self.run].reshape(self.shape)
        return found[self.entries] if self.entries else found


@dataclass(frozen=True)
class Box:
    """Some entries along each dimension of a piece."""

    origin: Shape
    size: Shape

    @property
    def region(self) -> Region:
        return tuple(slice(at, at + n) for at, n in zip(self.origin, self.size, strict=True))

    def take_from(self, piece: Array, size: Shape) -> Array:
        """Return the part of a piece, or the part of this size of a statistic of the piece."""
        each = zip(self.origin, size, piece.shape, strict=True)
        # A statistic has size 1 where it was summed; there all boxes share a single entry.
        return piece[tuple(slice(at, at + n) if whole > 1 else slice(0, n) for at, n, whole in each)]


def _all_of_it(places: Places, dims: Shape) -> list[Region]:
    """Return a rank's part of a whole piece."""
    return [(...,)]


@dataclass(frozen=True)
class LocalPart:
    """The local part of one piece of a tensor, which is one job."""

    piece: Piece
    number: int = 0  # of the piece
    member: int = 0  # of the plan's tensors
    axes: tuple[tuple[Any, int | None], ...] = ()  # the axes that cut it, along a dimension of the piece or anywhere
    shape: Shape | None = None  # of the whole piece, if it is cut
    parts: int = 1
    blocks: tuple[list[int], ...] = ()  # the local blocks, if each is whole somewhere
    place: PartSlices | None = None  # in the local part; None: as the piece is in the tensor
    places: Mapping[str, PartSlices] = field(default_factory=dict, compare=False)  # in state with another layout
    box: Box | None = None  # if several parts of a piece may lie on one rank,
    spread: Any = None  # the tensor, and the part that each rank holds
    # The parts of a rank, by its places along the axes: in these dimensions of the piece, in others of the local part.
    regions: Callable[[Places, Shape], list[Region]] = field(default=_all_of_it, compare=False)
    replicas: tuple[Any, ...] = ()  # the axes over which it is replicated

    def view(self, array: Array, key: str = "") -> Array:
        """Return the part of an array with the local layout of the tensor, or of the state of this name."""
        place = self.places.get(key, self.place)
        return self.piece.view(array) if place is None else place.take_from(array)

    def index(self, whole: Callable[[], Index]) -> Index:
        """Return the indices of its elements in the tensor, given those of the local part."""
        if self.box is not None:
            index = self.piece.view(index_of(self.spread.shape or (1,)))
            return cast("Index", self.box.take_from(index, self.box.size))
        return cast("Index", self.view(whole()))

    @property
    def cut(self) -> Hashable:
        """The key that jobs must share, besides their shapes, to be alike on all ranks."""
        if self.box is not None:
            return TensorId(self.spread.name, self.number)
        return self.axes, None if self.place is None else self.piece.part

    def add_measured(self, found: dict[str, Array], measured: Stats) -> None:
        """Join the measurements of this part with those of other parts of the piece, with nan for blocks on other
        ranks.
        """
        for key, x in measured.items():
            if not self.blocks:
                found.setdefault(key, x)
                continue
            if key not in found:
                found[key] = np.full([self.piece.shape[d] for d in sorted(self.piece.block_dims)], np.nan)
            found[key][np.ix_(*self.blocks)] = np.reshape(x, tuple(map(len, self.blocks))) if np.ndim(x) else x


@dataclass(frozen=True)
class Plan:
    """The plan of one tensor's step."""

    name: Name
    rule: ModuleType
    h: Hyper
    shape: Shape
    layout: Layout
    held: tuple[LocalPart, ...]
    state_shapes: dict[str, Shape | None]  # the whole shape
    kept: dict[str, Kept | None]
    elementwise: dict[str, bool]  # whether a part of the state has a number for each element

    @classmethod
    def of(cls, name: Name, rule: ModuleType, h: Hyper, shape: Shape, layout: Layout, **more: Any) -> Self:
        """Return the plan of a tensor that is whole on this rank."""
        held = tuple(LocalPart(piece, i) for i, piece in enumerate(layout.pieces))
        return cls(name, rule, h, shape, layout, held, *state_layout(rule, layout, len(shape)), **more)

    is_cut = False
    """Whether other processes may hold other parts of the tensor."""

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "rule": self.rule.__name__}  # modules cannot be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, rule=import_module(state["rule"]))

    @property
    def key(self) -> str:
        """The name by which random bits are drawn."""
        return str(self.name)

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The existing fields of the state."""
        return tuple(field for field, shape in self.state_shapes.items() if shape is not None)

    @property
    def is_single_job(self) -> bool:
        """True if the unchanged tensor is the only job."""
        return len(self.held) == 1 and self.held[0].place is None and self.layout.pieces[0].part is None

    @property
    def stored_together(self) -> tuple[Plan, ...]:
        """The plans of the tensors that are stored together."""
        return (self,)

    def multiplied_in(self, own: str) -> str | None:
        """Return the dtype in which a step multiplies matrices, if it does, of weights of this dtype."""
        h: Any = self.layout.pieces[0].h
        return None if not h.of_matrices else h.ns_dtype if h.ns_dtype in HALVES else arithmetic_dtype(own)

    def why_not_grouped(self) -> str:
        """Return the reason why state cannot be stored in groups of 8 bits, or an empty string."""
        return CUT_BY_BLOCKS if blocks_cut_groups(self.shape, [one.piece.part for one in self.held]) else ""

    def zeros_maker(self, lib: Library, field: str, dtype: str) -> Callable[[Array], Array]:
        """Return a function that creates a field of a tensor's state."""
        if self.elementwise[field]:
            return partial(lib.zeros_like, dtype=dtype)
        return partial(lib.zeros, self.state_shapes[field] or (), dtype)

    def new_scales(self, lib: Library, p: Array) -> Array:
        return lib.zeros(scales_of(self.shape), "float32", p)

    def index(self, p: Array) -> Index:
        """Return the indices of the local part's elements in the tensor."""
        return index_of(self.shape)

    def measured(self, each: Iterator[Stats]) -> Iterator[tuple[Name, dict[str, Array]]]:
        """Yield the names of tensors with their jobs' measurements."""
        found: dict[tuple[int, int], dict[str, Array]] = {}
        for one in self.held:
            one.add_measured(found.setdefault((one.member, one.number), {}), next(each))
        for i, plan in enumerate(self.stored_together):
            pieces = plan.layout.pieces
            yield plan.name, join_pieces([found[i, number] for number in range(len(pieces))], pieces)


def with_names(plans: Iterable[P], names: Iterable[object]) -> list[P]:
    """Return plans, each of a tensor of that name or one that is alike, for these names; they have the same `held`."""
    found = []
    for plan, name in zip(plans, names, strict=True):
        if plan.name != name:
            made = object.__new__(type(plan))
            made.__dict__.update(plan.__dict__, name=name)
            plan = made
        found.append(plan)
    return found


def state_layout(
    rule: ModuleType, layout: Layout, ndim: int
) -> tuple[dict[str, Shape | None], dict[str, Kept | None], dict[str, bool]]:
    """Return, by fields of the rule's state, their shapes, the dimensions that they extend along, and whether along
    all.
    """
    fields = rule.State._fields
    shapes = dict(zip(fields, layout.state_shapes(), strict=True))
    kept = dict(zip(fields, kept_dims(rule, layout, ndim), strict=True))
    return shapes, kept, elementwise(rule, kept)
