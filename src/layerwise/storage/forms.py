"""The forms of one tensor's scales: their shape, and how blocks see them."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from layerwise.blocks import Part
from layerwise.storage import groups

Shape = tuple[int, ...]
CUT_BY_BLOCKS = "its blocks are stepped one by one and would cut groups of 64 elements"


def scales_of(shape: Shape) -> Shape:
    """Return the shape of the scales of a tensor in groups: of a vector one row, else as many as it has."""
    if len(shape) == 1:
        return (groups.count(shape[0]),)
    return shape[0], groups.count(prod(shape[1:]))


def blocks_cut_groups(shape: Shape, parts: Iterable[Part | None]) -> bool:
    """Return whether pieces of a tensor may end within a group."""
    return any(part is not None and part.one is not None and (part.axis > 0 or len(shape) == 1) for part in parts)


def blocks_cut_rows(ndim: int, part: Part | None) -> bool:
    """Return whether a piece has its part of the rows, and so of their scales."""
    return part is not None and not part.drop and part.axis == 0 and ndim > 1


def row_dims(ndim: int, part: Part | None) -> int:
    """Return how many leading dimensions of a piece count rows."""
    if ndim == 1:
        return 0
    return 2 if part is not None and not (part.one or part.drop or part.axis) else 1
