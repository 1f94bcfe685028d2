"""The layout of a tensor's step: the pieces that a rule sees, their settings, and their state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import eq
from types import ModuleType

from layerwise.errors import ContradictionError
from layerwise.layout.blocks import Blocks, BlockView, merged_shape
from layerwise.options.by_name import Name
from layerwise.options.settings import Hyper
from layerwise.rules.requests import Array
from layerwise.rules.states import is_of_layer

Shape = tuple[int, ...]
Kept = tuple[bool, ...]  # for each dimension of the tensor, whether a state extends along it


@dataclass(frozen=True)
class Piece:
    """A part of a tensor that a rule steps at once: the whole tensor, equal blocks, or one of several blocks."""

    part: BlockView | None
    shape: Shape  # as the rule sees it
    h: Hyper  # fitted to that shape
    fields: tuple[Shape | None, ...]  # the shapes of the rule's state

    @property
    def block_dims(self) -> Shape:
        return () if self.part is None else self.part.dims()

    def view(self, array: Array) -> Array:
        return array if self.part is None else self.part.view(array)


@dataclass(frozen=True)
class Layout:
    """The pieces of one tensor."""

    pieces: tuple[Piece, ...]

    def state_shapes(self) -> tuple[Shape | None, ...]:
        """Return the shapes of the stored state, which holds all pieces together."""
        if self.pieces[0].part is None:
            return self.pieces[0].fields
        parts = [piece.part for piece in self.pieces if piece.part is not None]
        columns = zip(*(piece.fields for piece in self.pieces), strict=True)
        return tuple(
            None if column[0] is None else merged_shape(parts, [s for s in column if s is not None])
            for column in columns
        )


def lay_out(
    name: Name,
    rule: ModuleType,
    h: Hyper,
    shape: Shape,
    blocks: Blocks | None,
    machine_eps: float,
    one_by_one: Callable[[int], bool] = lambda axis: False,
) -> Layout:
    """Return the tensor cut into pieces, each with the hyperparameters fitted to its shape.

    Equal blocks are one piece, except along an axis whose blocks are `one_by_one`.
    """
    parts: Sequence[BlockView | None] = [None]
    if blocks is not None:
        found = blocks.parts(name, shape)
        parts = [one for part in found for one in (part.one_by_one(shape) if one_by_one(part.axis) else [part])]
    pieces = tuple(_piece(rule, h, shape, part, machine_eps) for part in parts)
    if len({getattr(piece.h, "factored", None) for piece in pieces}) > 1:
        raise ContradictionError(
            f"the blocks of {name!r}, {blocks} of shape {shape}, would not all be factored alike. Pass "
            "factored=False, a min_dim_size_to_factor that treats all of them alike, or the dimensions."
        )
    return Layout(pieces)


def sharded_layout(layout: Layout, parts: Shape | None, replicas: int) -> Layout:
    """Return the layout of a tensor that is divided into this many parts along each dimension, or anywhere (None).

    `replicas` is the number of copies of the parts, which share the work; with 0 the work is not shared.
    """
    pieces = []
    for piece in layout.pieces:
        part, own = piece.part, parts
        if parts is not None and part is not None and len(piece.shape) > len(parts):
            own = (*parts[: part.axis], 1, *parts[part.axis :])  # a dimension that counts blocks
        pieces.append(replace(piece, h=piece.h.for_shards(piece.shape, own, replicas)))
    return Layout(tuple(pieces))


def _piece(rule: ModuleType, h: Hyper, shape: Shape, part: BlockView | None, machine_eps: float) -> Piece:
    seen = shape if part is None else part.shape(shape)
    fitted = h.fit(seen, () if part is None else part.dims(), machine_eps)
    return Piece(part, seen, fitted, tuple(rule.shapes(fitted, seen)))


def kept_dims(rule: ModuleType, layout: Layout, ndim: int) -> tuple[Kept | None, ...]:
    """Return, for each of the rule's states, the dimensions of the tensor that it extends along."""
    piece = layout.pieces[0]
    found: list[Kept | None] = []
    for kept in piece_dims(rule, piece):
        if kept is not None and len(kept) > ndim and piece.part is not None:
            axis = piece.part.axis  # which counts blocks
            kept = (*kept[:axis], *kept[axis + 1 :])
        found.append(kept)
    return tuple(found)


def piece_dims(rule: ModuleType, piece: Piece) -> tuple[Kept | None, ...]:
    """Return the same for the dimensions of a piece."""
    grown = tuple(n + 2 for n in piece.shape)  # prime lengths, so that no dimension looks as if it had been summed over
    shapes = rule.shapes(piece.h, grown)
    return tuple([None if shape is None else tuple(map(eq, shape, grown)) for shape in shapes])


def elementwise(rule: ModuleType, kept: Mapping[str, Kept | None]) -> dict[str, bool]:
    """Return, by name, True if a state that extends along these dimensions has a number for each element."""
    return {field: one is not None and all(one) and not is_of_layer(rule, field) for field, one in kept.items()}
