"""What is known about a value before the computation: it is a number, or an array whose value is known later."""

from __future__ import annotations

from math import inf
from typing import Any, TypeGuard

Scalar = Any  # a Python number, or a zero-dimensional array if it is traced or lives on a device


def is_number(x: object) -> TypeGuard[float]:
    return isinstance(x, (int, float))


def is_zero(x: object) -> bool:
    """Return True if the value is known to be 0, so that a whole pass over the tensor can be left out."""
    return is_number(x) and x == 0


def is_one(x: object) -> bool:
    """Return True if the value is known to be 1, so that a multiplication can be left out."""
    return is_number(x) and x == 1


def is_infinite(x: object) -> bool:
    """Return True if the value is known to be infinite, so that it is no bound."""
    return is_number(x) and abs(x) == inf


def is_on(x: object) -> bool:
    """Return True unless the value is known to be off, that is None or 0."""
    return not (x is None or is_zero(x))
