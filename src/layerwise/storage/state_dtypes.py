"""The forms of one tensor's state: the dtype of each field, the shape of its scales, and their blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import NamedTuple

from layerwise.layout.blocks import BlockView
from layerwise.storage import quantized_groups
from layerwise.storage.coded import CODED
from layerwise.storage.options import RequestedStorage

Shape = tuple[int, ...]
CUT_BY_BLOCKS = f"its blocks are stepped one by one, which would split groups of {quantized_groups.GROUP} elements"


class ChosenDtype(NamedTuple):
    """The name of the dtype that stores a field, and the reason if it is not the requested one."""

    dtype: str
    why: str = ""
    by_layout: bool = False  # the reason lies in the layout of the parameter


def stored_dtype(
    want: RequestedStorage,
    field: str,
    own: str,
    settled: str | None,
    elementwise: bool,
    shape: Shape,
    why_not_grouped: Callable[[], str] = lambda: "",
) -> ChosenDtype:
    """Return the dtype that stores a field of a tensor of this shape, instead of the arithmetic's `own` dtype.

    `settled` is the dtype that another option determines.
    """
    asked = want.state.get(field, settled or own)
    if asked in (settled, own):
        return ChosenDtype(asked)
    if not elementwise:
        return ChosenDtype(own, "it has fewer numbers than the parameter has elements, or one for each block")
    if asked == "float32":
        return ChosenDtype(asked)
    if prod(shape) < quantized_groups.LEAST:
        return ChosenDtype(own, f"the parameter has fewer than {quantized_groups.LEAST} elements")
    why = why_not_grouped() if asked in CODED else ""
    return ChosenDtype(own, why, True) if why else ChosenDtype(asked)


def scales_of(shape: Shape) -> Shape:
    """Return the shape of the scales of a tensor in groups: one row for a vector, otherwise as many rows as it has."""
    if len(shape) == 1:
        return (quantized_groups.num_groups(shape[0]),)
    return shape[0], quantized_groups.num_groups(prod(shape[1:]))


def blocks_cut_groups(shape: Shape, parts: Iterable[BlockView | None]) -> bool:
    """Return True if pieces of a tensor may end within a group."""
    return any(part is not None and part.one is not None and (part.axis > 0 or len(shape) == 1) for part in parts)


def blocks_cut_rows(ndim: int, part: BlockView | None) -> bool:
    """Return True if a piece has its own rows of scales."""
    return part is not None and not part.drop and part.axis == 0 and ndim > 1


def row_dims(ndim: int, part: BlockView | None) -> int:
    """Return the number of leading dimensions of a piece that count rows."""
    if ndim == 1:
        return 0
    return 2 if part is not None and not (part.one or part.drop or part.axis) else 1
