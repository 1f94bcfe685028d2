"""What is known of a value before it is computed with: a number, or an array whose value is known later."""

from __future__ import annotations

from math import inf
from typing import Any


def is_number(x: Any) -> bool:
    return isinstance(x, (int, float))


def is_zero(x: Any) -> bool:
    """Return True if it is known now to be 0, so that a whole pass over the tensor can be left out."""
    return is_number(x) and x == 0


def is_one(x: Any) -> bool:
    """Return True if it is known now to be 1, so that multiplying by it can be left out."""
    return is_number(x) and x == 1


def is_infinite(x: Any) -> bool:
    """Return True if it is known now to be infinite, so that it bounds nothing."""
    return is_number(x) and abs(x) == inf


def is_on(x: Any) -> bool:
    """Return True unless it is known now to be off; None and 0 are."""
    return not (x is None or is_zero(x))
