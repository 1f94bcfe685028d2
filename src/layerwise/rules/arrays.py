"""Passes over arrays. A namespace may replace several of them by its own."""

from __future__ import annotations

from math import sqrt

from layerwise.options.values import Scalar, is_number, is_one, is_zero
from layerwise.rules.requests import Array, Functions, Moves, T
from layerwise.rules.scalars import root


def is_complex(x: Array) -> bool:
    return getattr(x.dtype, "kind", "f") == "c"


def square(x: Array) -> Array:
    """Return x², or |x|² of a complex array."""
    return (x * x.conj()).real if is_complex(x) else x * x


def length(xp: Functions, squares: Scalar, like: Array) -> Scalar:
    """Return the root of an answer to a request for squares, in the dtype of `like` if that is an array."""
    if is_number(squares):
        return sqrt(squares)
    norm = xp.length(squares) if hasattr(xp, "length") else root(xp, squares)
    own = (like.real if is_complex(like) else like).dtype
    return norm if norm.dtype == own else xp.asarray(norm, dtype=own)


def still(xp: Functions, numbers: T) -> T:
    """Return the numbers of a tensor. A compiling namespace computes them outside the loop over its elements."""
    return xp.still(numbers) if hasattr(xp, "still") else numbers


def final(xp: Functions, *state: Array) -> tuple[Array, ...]:
    """Return the new state as the step leaves it. A namespace that runs a rule more than once returns its own."""
    return xp.final(*state) if hasattr(xp, "final") else state


def mix(xp: Functions, b: Scalar, x: Array, a: Scalar, y: Array) -> Array:
    """Return b·x + a·y, where a is 1 − b or 1. x is used up: a namespace with its own `mix` may overwrite it."""
    if is_one(a):
        return add(xp, y, b, x)
    return xp.mix(b, x, y) if hasattr(xp, "mix") else b * x + a * y


def add(xp: Functions, x: Array, a: Scalar, y: Array) -> Array:
    """Return x + a·y, in one pass if the namespace has one."""
    return xp.add_scaled(x, a, y) if hasattr(xp, "add_scaled") else x + a * y


def add_overwriting(xp: Functions, x: Array, a: Scalar, y: Array) -> Array:
    """Return x + a·y. x is used up: a namespace with its own `add_overwriting` may overwrite it."""
    return xp.add_overwriting(x, a, y) if hasattr(xp, "add_overwriting") else add(xp, x, a, y)


def scaled(a: Scalar, x: Array) -> Array:
    """Return a·x, or x itself if `a` is known to be 1."""
    return x if is_one(a) else a * x


def apply_moves(xp: Functions, p: Array, moves: Moves) -> Array:
    """Return p after these moves. p may be overwritten."""
    for a, x in moves:
        p = add_overwriting(xp, p, a, x)
    return p


def after_moves(xp: Functions, p: Array, moves: Moves) -> Array:
    """Return p after these moves, without overwriting p."""
    for a, x in moves:
        p = add(xp, p, a, x)
    return p


def unless_off(xp: Functions, a: Scalar, y: Array) -> Array:
    """Return y, or 0 if the factor `a` is 0: an option that is off must not turn infinite numbers into nan.

    A factor that is already known to be 0 is left out altogether. Kernels only know it in a step, so their namespace
    has its own function.
    """
    return xp.unless_off(a, y) if hasattr(xp, "unless_off") else y


def add_unless_off(xp: Functions, x: Array, a: Scalar, y: Array) -> Array:
    """Return x + a·y, or x if `a` is off."""
    return x if is_zero(a) else add(xp, x, a, unless_off(xp, a, y))


def shrinking(xp: Functions, a: Scalar, p: Array) -> Moves:
    """Return the move p ← p − a·p, or none if `a` is off."""
    return () if is_zero(a) else ((-a, unless_off(xp, a, p)),)
