"""The parts that the rules share: preparing the gradient, a safe trust ratio, and arithmetic on scalars.

A scalar may be a plain number, known now, or an array, known when the program runs.
"""

from __future__ import annotations

from math import log, sqrt
from typing import Any

from layerwise.rules.asks import Array, Asking, ModelSum, Moves, Now, Scalar, Squares


def is_number(x: Scalar) -> bool:
    return isinstance(x, (int, float))


def is_complex(x: Array) -> bool:
    return getattr(x.dtype, "kind", "f") == "c"


def is_zero(x: Scalar) -> bool:
    """Return whether it is known now to be 0, so that a whole pass over the tensor can be left out."""
    return is_number(x) and x == 0


def is_on(x: Scalar | None) -> bool:
    """Return whether it is not known now to be off; None and 0 are."""
    return not (x is None or is_zero(x))


def choose(xp: Any, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
    return (yes if condition else no) if isinstance(condition, bool) else xp.where(condition, yes, no)


def at_least(xp: Any, x: Scalar, low: Scalar) -> Scalar:
    return choose(xp, x < low, low, x)  # in this order, so that nan stays nan


def at_most(xp: Any, x: Scalar, high: Scalar) -> Scalar:
    return choose(xp, x > high, high, x)


def between(xp: Any, x: Scalar, bounds: tuple[float | None, float | None] | None) -> Scalar:
    low, high = bounds or (None, None)
    x = x if low is None else at_least(xp, x, low)
    return x if high is None else at_most(xp, x, high)


def moved(xp: Any, p: Array, moves: Moves) -> Array:
    """Return p after these moves. p is used up."""
    for a, x in moves:
        p = move(xp, p, a, x)
    return p


def square(x: Array) -> Array:
    """Return x², or |x|² of a complex array."""
    return (x * x.conj()).real if is_complex(x) else x * x


def one_minus_power(xp: Any, b: Scalar, t: Scalar) -> Scalar:
    """Return 1 − b^t. In float32 the subtraction would lose four digits for b near 1, so an array t goes by expm1."""
    if is_number(t) or not is_number(b) or b == 0:
        return 1 - b**t
    return -xp.expm1(t * log(b))


def mix(xp: Any, b: Scalar, x: Array, y: Array) -> Array:
    """Return b·x + (1 − b)·y. x is used up: a namespace that says so in `mix` may write over it."""
    return xp.mix(b, x, y) if hasattr(xp, "mix") else b * x + (1 - b) * y


def final(xp: Any, *state: Array) -> tuple[Array, ...]:
    """Return the state as the step leaves it. A namespace that computes a rule more than once returns its own."""
    return xp.final(*state) if hasattr(xp, "final") else state


def add(xp: Any, x: Array, a: Scalar, y: Array) -> Array:
    """Return x + a·y, in one pass where the namespace has one."""
    return xp.add_scaled(x, a, y) if hasattr(xp, "add_scaled") else x + a * y


def move(xp: Any, x: Array, a: Scalar, y: Array) -> Array:
    """Return x + a·y. x is used up: a namespace that says so in `move` may write over it."""
    return xp.move(x, a, y) if hasattr(xp, "move") else add(xp, x, a, y)


def root(xp: Any, x: Scalar) -> Scalar:
    """Return √x with a derivative of 0 at 0, where √ alone has none."""
    if is_number(x):
        return sqrt(x)
    zero = x == 0
    return xp.where(zero, 0.0, xp.sqrt(xp.where(zero, 1.0, x)))


def length(xp: Any, squares: Scalar, like: Array) -> Scalar:
    """Return the root of an answer to a request for squares, in the dtype of `like` where it is an array."""
    if is_number(squares):
        return sqrt(squares)
    norm = xp.length(squares) if hasattr(xp, "length") else root(xp, squares)
    own = (like.real if is_complex(like) else like).dtype
    return norm if norm.dtype == own else xp.asarray(norm, dtype=own)


def ready(xp: Any, g: Array, h: Any, now: Now) -> Array:
    """Return the gradient as it is to be used: unscaled, turned round, clipped by value.

    g ← g / g_scale;   g ← −g;   g ← clip(g, low, high)
    """
    if not (is_number(now.g_scale) and now.g_scale == 1):
        g = g / now.g_scale
    if h.maximize:
        g = -g
    return g if h.value_bounds is None else xp.clip(g, *h.value_bounds)


def clipped(xp: Any, g: Array, h: Any) -> Asking[Array]:
    """Return the gradient clipped by its own norm, and by the norm of all.

    g ← g / max(1, ‖g‖/c);   g ← g / max(1, √Σ‖g‖²/c)
    """
    if is_on(h.max_grad_norm_per_tensor):
        (gg,) = yield (Squares(g),)
        g = g / at_least(xp, length(xp, gg, g) / h.max_grad_norm_per_tensor, 1.0)
    if is_on(h.max_grad_norm):
        (gg,) = yield (ModelSum(g),)
        g = g / at_least(xp, length(xp, gg, g) / h.max_grad_norm, 1.0)
    return g


def floored(xp: Any, norm: Scalar, h: Any) -> Scalar:
    """Return the norm as the ratio takes it: no smaller than min_norm."""
    return norm if is_zero(h.min_norm) else at_least(xp, norm, h.min_norm)


def trusted(xp: Any, ratio: Scalar, defined: Any, lam: Scalar, h: Any) -> Scalar:
    """Return the ratio where it is defined, `zero_norm_ratio` where a norm is 0, and 1 where λ = 0 turns it off."""
    ratio = choose(xp, defined, ratio, h.zero_norm_ratio)
    one = 1.0 if is_number(ratio) else xp.ones_like(ratio)
    return choose(xp, lam == 0, one, ratio) if h.adapt == "decayed" else ratio
