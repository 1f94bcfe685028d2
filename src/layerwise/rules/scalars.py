"""Arithmetic on scalars: a Python number has a known value, an array has one only when the program runs."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from functools import cache, wraps
from math import inf, log, sqrt
from typing import TypeVar, cast

from layerwise.options.values import Scalar, is_infinite, is_number, is_zero
from layerwise.rules.requests import Coefficients, Functions, Now

H = TypeVar("H")
Compute = Callable[[Functions, H, Now], Coefficients]


def named(**numbers: Scalar) -> Coefficients:
    """Return numbers by their names, in this order."""
    return _kind(*numbers)(*numbers.values())


@cache
def _kind(*names: str) -> Callable[..., Coefficients]:
    return cast("Callable[..., Coefficients]", namedtuple("Coefficients", names))  # the names depend on the caller


def once_a_step(coefficients: Compute[H]) -> Compute[H]:
    """Let a namespace replace the numbers of a step, once for all tensors that share them."""

    @wraps(coefficients)
    def taken(xp: Functions, h: H, now: Now) -> Coefficients:
        own = getattr(xp, "coefficients", None)
        return coefficients(xp, h, now) if own is None else own(coefficients, h, now)

    return taken


def product(a: Scalar, b: Scalar) -> Scalar:
    """Return a·b, which is known to be 0 if a factor is."""
    return 0.0 if is_zero(a) or is_zero(b) else a * b


def choose(xp: Functions, condition: object, yes: Scalar, no: Scalar) -> Scalar:
    return (yes if condition else no) if isinstance(condition, bool) else xp.where(condition, yes, no)


def vanishes(xp: Functions, x: Scalar) -> Scalar:
    """Return x == 0. A namespace whose arrays are compared with a tolerance has its own function."""
    return xp.vanishes(x) if hasattr(xp, "vanishes") and not is_number(x) else x == 0


def exists(xp: Functions, x: Scalar) -> Scalar:
    """Return x != 0."""
    return xp.exists(x) if hasattr(xp, "exists") and not is_number(x) else x != 0


def one_like(xp: Functions, x: Scalar) -> Scalar:
    """Return 1, as an array if x is one: a choice between two numbers would create a dtype of its own."""
    return 1.0 if is_number(x) else xp.ones_like(x)


def at_least(xp: Functions, x: Scalar, low: Scalar) -> Scalar:
    if is_infinite(low):
        return x
    return choose(xp, x < low, low, x)  # in this order, so that nan stays nan


def at_most(xp: Functions, x: Scalar, high: Scalar) -> Scalar:
    if is_infinite(high):
        return x
    return choose(xp, x > high, high, x)


def between(xp: Functions, x: Scalar, low: Scalar, high: Scalar) -> Scalar:
    return at_most(xp, at_least(xp, x, low), high)


STEP = 48  # the exponents of the powers of two are multiples of this
FARTHEST = -125, 120  # so that they and their reciprocals are normal numbers of float32


def leveling_power(xp: Functions, size: Scalar) -> Scalar:
    """Return a power of two that brings a float32 size between 2^-24 and 2^24, or 1 if it already lies there.

    Multiplying a value by it and dividing the value's factor by it changes no bit, and keeps both within float32.
    """
    found, half = one_like(xp, size), STEP // 2
    for k in (1, 2, 3):
        found = choose(xp, size < 2.0 ** (half - k * STEP), 2.0 ** min(k * STEP, -FARTHEST[0]), found)
        found = choose(xp, size > 2.0 ** (k * STEP - half), 2.0 ** max(-k * STEP, -FARTHEST[1]), found)
    return found


def bounds_of(bounds: tuple[float | None, float | None] | None) -> tuple[Scalar, Scalar]:
    """Return both bounds as numbers, infinite for None."""
    low, high = bounds or (None, None)
    return -inf if low is None else low, inf if high is None else high


def one_minus_power(xp: Functions, b: Scalar, t: Scalar) -> Scalar:
    """Return 1 − b^t. In float32 the subtraction would lose four digits for b near 1, so an array t uses expm1."""
    if is_number(t) or not is_number(b) or b == 0:
        return 1 - b**t
    return -xp.expm1(t * log(b))


def dampening_factor(xp: Functions, t: Scalar, dampening: Scalar) -> Scalar:
    """Return the factor on new values of a momentum buffer: 1 in the first step, then 1 − dampening."""
    if is_zero(dampening):
        return 1.0
    one = one_like(xp, t)
    return choose(xp, t == 1, one, (1 - dampening) * one)


def root(xp: Functions, x: Scalar) -> Scalar:
    """Return √x with a derivative of 0 at 0, where √ itself has none."""
    if is_number(x):
        return sqrt(x)
    zero = vanishes(xp, x)
    return xp.where(zero, 0.0, xp.sqrt(xp.where(zero, 1.0, x)))
