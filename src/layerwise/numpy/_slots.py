"""What an optimizer keeps of each name: its settings as they apply to that tensor, and its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from layerwise.blocks import Blocks, Part, merged
from layerwise.errors import ContradictionError
from layerwise.hyper import Hyper
from layerwise.numpy._arrays import Array

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A part of a tensor that a rule steps at once: the whole of it, or equal blocks, or one block of several."""

    part: Part | None
    shape: Shape  # as the rule sees it
    h: Hyper
    fields: tuple[Shape | None, ...]  # the shapes of the rule's state

    @property
    def block_dims(self) -> Shape:
        return () if self.part is None else self.part.dims()

    def view(self, array: Array) -> Array:
        return array if self.part is None else self.part.view(array)


@dataclass(frozen=True)
class Plan:
    """How one name is stepped."""

    pieces: tuple[Piece, ...]
    lr_scale: float
    decay_factor: float

    def state_shapes(self) -> tuple[Shape | None, ...]:
        """The shapes of the state as it is stored, the pieces' together."""
        pieces = self.pieces
        if pieces[0].part is None:
            return pieces[0].fields
        parts = [piece.part for piece in pieces if piece.part is not None]
        columns = zip(*(piece.fields for piece in pieces), strict=True)
        return tuple(None if column[0] is None else merged(parts, [s for s in column if s]) for column in columns)


def plan_pieces(
    name: str, rule: Any, h: Hyper, shape: Shape, blocks: Blocks | None, machine_eps: float
) -> tuple[Piece, ...]:
    """The tensor cut into pieces, each with the hyperparameters fitted to its shape."""
    parts: Sequence[Part | None] = [None] if blocks is None else blocks.parts(name, shape)
    cut = tuple(_piece(rule, h, shape, part, machine_eps) for part in parts)
    if len({getattr(piece.h, "factored", None) for piece in cut}) > 1:
        raise ContradictionError(
            f"the blocks of {name!r}, {blocks} of shape {shape}, would not all be factored alike. "
            "Pass factored=False, or a min_dim_size_to_factor that decides the same for all of them."
        )
    return cut


def _piece(rule: Any, h: Hyper, shape: Shape, part: Part | None, machine_eps: float) -> Piece:
    # Any array of the shape would do to learn the view's shape; this one holds a single element.
    seen = shape if part is None else part.view(np.broadcast_to(np.False_, shape)).shape
    fitted = h.fit(seen, () if part is None else part.dims(), machine_eps)
    return Piece(part, seen, fitted, tuple(rule.shapes(fitted, seen)))


@dataclass
class Slot:
    """The state of one name."""

    shape: Shape
    state: Any  # the rule's State, of stored arrays
    step: int = 0
    stats: list[dict[str, Any]] = field(default_factory=list)
