"""Exact sums: digits of 40 bits, which add up to the same in any order.

A digit counts multiples of 2^(40·k), for a k that belongs to its place and not to the numbers. What is added to the
digits of a number is split into such multiples without a remainder, and a digit is an integer below 2^53. So each
addition is exact in any order: of slices, of threads, or of ranks in an all-reduce. The total is rounded once.
Demmel and Nguyen (Parallel Reproducible Summation, IEEE Transactions on Computers, 2015) add up numbers in such bins
and keep the few that matter beside the largest; here all are kept, because they are sent, and the largest is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from layerwise.rules.asks import Array

WIDTH = 40
UNIT = 2.0**WIDTH
MOST_PARTS = 1 << 12  # that can be added up before digits are carried: each digit is at most 2^40


class Window(NamedTuple):
    """The digits of a kind of number: the first counts multiples of 2^(40·low)."""

    low: int
    digits: int


# Of numbers in float32, of their squares, and of numbers in float64.
PLAIN, OF_SQUARES, WIDE = Window(-4, 8), Window(-8, 15), Window(-27, 52)


class Exact(NamedTuple):
    """The window of the digits of a number, and the number's dtype."""

    window: Window
    dtype: Any


def carried(xp: Any, digits: Array) -> Array:
    """Return digits of the same value, each at most 2^39 in size plus its carry from below; the last is unchanged."""
    up = xp.round(digits[:-1] / UNIT)
    return xp.concat([digits[:1] - up[:1] * UNIT, digits[1:-1] - up[1:] * UNIT + up[:-1], digits[-1:] + up[-1:]], 0)


def added(xp: Any, parts: Sequence[Array]) -> Array:
    """Add up digits of any number of parts."""
    total = parts[0]
    for start in range(1, len(parts), MOST_PARTS):
        total = carried(xp, sum(parts[start : start + MOST_PARTS], total))
    return total


def sum_of_rows(xp: Any, rows: Array) -> Array:
    """Return the sum of rows, each of which may be a sum of many: of numbers in one column, or of digits."""
    if rows.shape[1] == 1:
        return rows.sum(0)
    digits = carried(xp, rows.T)
    total = digits[:, :1].sum(1)
    for start in range(1, rows.shape[0], MOST_PARTS):
        total = carried(xp, total + digits[:, start : start + MOST_PARTS].sum(1))
    return total


def total_of(xp: Any, digits: Array, exact: Exact) -> Array:
    """Return the number that the digits make, in its dtype: it depends only on their value."""
    negative = _canonical(xp, digits)[-1] < 0
    found = _canonical(xp, xp.where(negative, -digits, digits))
    scaled = [_scaled(digit, exact.window.low + k) for k, digit in enumerate(found)]
    size = scaled[0]
    for one in scaled[1:]:  # from the smallest, so that the last addition alone rounds what matters
        size = size + one
    return xp.asarray(xp.where(negative, -size, size), dtype=exact.dtype)


def _canonical(xp: Any, digits: Array) -> list[Array]:
    """Return the one canonical form of a value's digits: from 0 to 2^40 − 1, the last unbounded."""
    found, up = [], 0.0
    for digit in digits[:-1]:
        digit = digit + up
        up = xp.floor(digit / UNIT)
        found.append(digit - up * UNIT)
    return [*found, digits[-1] + up]


def _scaled(digit: Array, k: int) -> Array:
    """Return digit·2^(40·k), in two factors because one might not be a number of float64."""
    half = WIDTH * k // 2
    return digit * 2.0**half * 2.0 ** (WIDTH * k - half)
