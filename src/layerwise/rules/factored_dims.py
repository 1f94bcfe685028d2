"""The dimensions of a tensor that a rule uses as rows and as columns."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Literal

from layerwise.options.checks import Check, RefusedValue, as_int, members_of_sequence, to_python

Dims = tuple[int, ...]
Factored = tuple[Dims, Dims]

GIVEN = "two dimensions such as (0, 1), or two groups of them such as ((0,), (1, 2, 3))."
WAY_OUT = f'Pass "last", "largest", "matrix", False, or {GIVEN}'
WAY_OUT_OF_LINES = f'Pass "first", "last", False, or {GIVEN}'


def _group(value: object) -> Dims:
    try:
        return (as_int(value),)
    except RefusedValue:
        group = tuple(map(as_int, members_of_sequence(value)))
    if not group:
        raise RefusedValue
    return group


def _convert(names: tuple[str, ...], value: object) -> str | bool | Factored:
    if to_python(value) is False or (isinstance(value, str) and value in names):
        return str(value) if isinstance(value, str) else False
    groups = members_of_sequence(value)
    if len(groups) != 2:
        raise RefusedValue
    rows, cols = map(_group, groups)
    if len({*rows, *cols}) != len(rows) + len(cols):
        raise RefusedValue
    return rows, cols


def _check(*names: str) -> Check:
    named = "".join(f'"{name}", ' for name in names)
    return Check(f"{named}False, or two distinct dimensions or groups of dimensions", partial(_convert, names))


CHECK = _check("last", "largest", "matrix")
LINES = _check("first", "last")


def _by_name(how: str, shape: Dims) -> Factored | None:
    n = len(shape)
    if n < 2 or (how == "matrix" and n != 2):
        return None
    if how == "first":
        return (0,), tuple(range(1, n))
    if how == "largest":
        # In the order of the tensor, not by size: rows and columns are interchangeable in R·C/mean(R).
        rows, cols = sorted(sorted(range(n), key=lambda d: shape[d])[-2:])
        return (rows,), (cols,)
    return (n - 2,), (n - 1,)


def _explicit(how: Factored, shape: Dims) -> Factored | None:
    n = len(shape)
    if any(not -n <= d < n for d in (*how[0], *how[1])):
        return None
    rows, cols = (tuple(d % n for d in group) for group in how)
    return None if {*rows} & {*cols} else (rows, cols)


def dims(
    how: str | Literal[False] | Factored, shape: Dims, smallest: int = 0, block_dims: Dims = ()
) -> Factored | None:
    """Return the rows and the columns of a tensor, or None if it is not factored.

    `block_dims` count blocks: factoring depends on the shape of a block, but the answer is in dimensions of `shape`.
    """
    if how is False:
        return None
    own = [d for d in range(len(shape)) if d not in block_dims]
    block = tuple(shape[d] for d in own)
    found = _by_name(how, block) if isinstance(how, str) else _explicit(how, block)
    if found is None or any(prod(block[d] for d in group) < smallest for group in found):
        return None
    rows, cols = found
    return tuple(own[d] for d in rows), tuple(own[d] for d in cols)
