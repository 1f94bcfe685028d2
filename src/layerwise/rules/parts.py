"""The parts that the rules share: preparing the gradient, a safe trust ratio, and arithmetic on scalars.

A scalar may be a plain number, known now, or an array, known when the program runs.
"""

from __future__ import annotations

from math import inf, log, sqrt
from typing import Any, NamedTuple

from layerwise.rules.asks import Array, Asking, Mean, ModelSum, Moves, Now, Scalar, Squares, Sum


class Trust(NamedTuple):
    """Numbers of a trust ratio: ratio = clip(‖p‖ / ‖·‖, low, high), no norm below min_norm."""

    min_norm: Scalar
    low: Scalar
    high: Scalar
    undefined: Scalar  # the ratio where a norm is 0
    adapts: Scalar  # where this is 0, the ratio is 1


def is_number(x: Scalar) -> bool:
    return isinstance(x, (int, float))


def is_complex(x: Array) -> bool:
    return getattr(x.dtype, "kind", "f") == "c"


def is_zero(x: Scalar) -> bool:
    """Return True if it is known now to be 0, so that a whole pass over the tensor can be left out."""
    return is_number(x) and x == 0


def is_one(x: Scalar) -> bool:
    """Return True if it is known now to be 1, so that multiplying by it can be left out."""
    return is_number(x) and x == 1


def is_infinite(x: Scalar) -> bool:
    """Return True if it is known now to be infinite, so that it bounds nothing."""
    return is_number(x) and abs(x) == inf


def is_on(x: Scalar | None) -> bool:
    """Return True unless it is known now to be off; None and 0 are."""
    return not (x is None or is_zero(x))


def choose(xp: Any, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
    return (yes if condition else no) if isinstance(condition, bool) else xp.where(condition, yes, no)


def one_like(xp: Any, x: Scalar) -> Scalar:
    """Return 1, as an array if x is one: a choice between two numbers would take a dtype of its own."""
    return 1.0 if is_number(x) else xp.ones_like(x)


def at_least(xp: Any, x: Scalar, low: Scalar) -> Scalar:
    if is_infinite(low):
        return x
    return choose(xp, x < low, low, x)  # in this order, so that nan stays nan


def at_most(xp: Any, x: Scalar, high: Scalar) -> Scalar:
    if is_infinite(high):
        return x
    return choose(xp, x > high, high, x)


def between(xp: Any, x: Scalar, low: Scalar, high: Scalar) -> Scalar:
    return at_most(xp, at_least(xp, x, low), high)


def bounds_of(bounds: tuple[float | None, float | None] | None) -> tuple[Scalar, Scalar]:
    """Return both bounds as numbers, infinite for None."""
    low, high = bounds or (None, None)
    return -inf if low is None else low, inf if high is None else high


def moved(xp: Any, p: Array, moves: Moves) -> Array:
    """Return p after these moves. p may be overwritten."""
    for a, x in moves:
        p = move(xp, p, a, x)
    return p


def after(xp: Any, p: Array, moves: Moves) -> Array:
    """Return p after these moves, where p itself is still needed."""
    for a, x in moves:
        p = add(xp, p, a, x)
    return p


def square(x: Array) -> Array:
    """Return x², or |x|² of a complex array."""
    return (x * x.conj()).real if is_complex(x) else x * x


def one_minus_power(xp: Any, b: Scalar, t: Scalar) -> Scalar:
    """Return 1 − b^t. In float32 the subtraction would lose four digits for b near 1, so an array t uses expm1."""
    if is_number(t) or not is_number(b) or b == 0:
        return 1 - b**t
    return -xp.expm1(t * log(b))


def mix(xp: Any, b: Scalar, x: Array, a: Scalar, y: Array) -> Array:
    """Return b·x + a·y, where a is 1 − b or 1. x is used up: a namespace with its own `mix` may overwrite it."""
    if is_one(a):
        return add(xp, y, b, x)
    return xp.mix(b, x, y) if hasattr(xp, "mix") else b * x + a * y


def damped(xp: Any, t: Scalar, dampening: Scalar) -> Scalar:
    """Return the factor on what enters a momentum buffer: 1 in the first step, then 1 − dampening."""
    if is_zero(dampening):
        return 1.0
    one = one_like(xp, t)
    return choose(xp, t == 1, one, (1 - dampening) * one)


def final(xp: Any, *state: Array) -> tuple[Array, ...]:
    """Return the state as the step leaves it. A namespace that runs a rule more than once returns its own."""
    return xp.final(*state) if hasattr(xp, "final") else state


def add(xp: Any, x: Array, a: Scalar, y: Array) -> Array:
    """Return x + a·y, in one pass if the namespace has one."""
    return xp.add_scaled(x, a, y) if hasattr(xp, "add_scaled") else x + a * y


def move(xp: Any, x: Array, a: Scalar, y: Array) -> Array:
    """Return x + a·y. x is used up: a namespace with its own `move` may overwrite it."""
    return xp.move(x, a, y) if hasattr(xp, "move") else add(xp, x, a, y)


def unless_off(xp: Any, a: Scalar, y: Array) -> Array:
    """Return y as what `a` multiplies: 0 where that is 0, because what is off must make no nan of infinite numbers.

    What is known now to be 0 is left out altogether. Kernels learn it in a step, and their namespace has its own.
    """
    return xp.unless_off(a, y) if hasattr(xp, "unless_off") else y


def plus(xp: Any, x: Array, a: Scalar, y: Array) -> Array:
    """Return x + a·y, and x where `a` is off."""
    return x if is_zero(a) else add(xp, x, a, unless_off(xp, a, y))


def shrinking(xp: Any, a: Scalar, p: Array) -> Moves:
    """Return the move p ← p − a·p; none where `a` is off."""
    return () if is_zero(a) else ((-a, unless_off(xp, a, p)),)


def root(xp: Any, x: Scalar) -> Scalar:
    """Return √x with a derivative of 0 at 0, where √ alone has none."""
    if is_number(x):
        return sqrt(x)
    zero = x == 0
    return xp.where(zero, 0.0, xp.sqrt(xp.where(zero, 1.0, x)))


def length(xp: Any, squares: Scalar, like: Array) -> Scalar:
    """Return the root of an answer to a request for squares, in the dtype of `like` if it is an array."""
    if is_number(squares):
        return sqrt(squares)
    norm = xp.length(squares) if hasattr(xp, "length") else root(xp, squares)
    own = (like.real if is_complex(like) else like).dtype
    return norm if norm.dtype == own else xp.asarray(norm, dtype=own)


def ready(xp: Any, g: Array, h: Any, now: Now) -> Array:
    """Return the prepared gradient: unscaled, negated, clipped by value.

    g ← g / g_scale;   g ← −g;   g ← clip(g, low, high)

    A namespace of engines that prepare gradients themselves has its own `ready` and `clipped`.
    """
    if hasattr(xp, "ready"):
        return xp.ready(g)
    if not (is_number(now.g_scale) and now.g_scale == 1):
        g = g / now.g_scale
    if h.maximize:
        g = -g
    return g if h.value_bounds is None else xp.clip(g, *h.value_bounds)


def clipped(xp: Any, g: Array, h: Any) -> Asking[Array]:
    """Return the gradient clipped by its own norm, and by the norm of all.

    g ← g / max(1, ‖g‖/c);   g ← g / max(1, √Σ‖g‖²/c)

    A rule without these options must call it too: its gradients may count in a norm that clips others.
    """
    if hasattr(xp, "clipped"):
        return (yield from xp.clipped(g))
    own, model = getattr(h, "max_grad_norm_per_tensor", None), h.model_bound
    if is_on(own):
        (gg,) = yield (Squares(g),)
        g = _shortened(xp, g, length(xp, gg, g), own)
    if is_on(model):
        (gg,) = yield (ModelSum(g),)
        g = _shortened(xp, g, length(xp, gg, g), model)
    return g


def _shortened(xp: Any, g: Array, norm: Scalar, bound: Scalar) -> Array:
    """Return g / max(1, norm/bound): g without a bound, where the norm of all may be infinite and inf/inf is nan."""
    return g if is_infinite(bound) else g / at_least(xp, norm / bound, 1.0)


LEAST_SHARE = 1e-3  # of the elements, as which fewer count


def cautious(xp: Any, u: Array, g: Array) -> Asking[tuple[Array, Scalar]]:
    """Return u where its sign is the gradient's, and 0 elsewhere, divided by the share of such elements; and the share.

    This compares signs, because u·g of small numbers may be 0. A nan stays nan.
    """
    agrees = xp.where(((u > 0) & (g > 0)) | ((u < 0) & (g < 0)), xp.ones_like(u), 0 * u)
    (share,) = yield (Mean(agrees),)
    size = at_least(xp, share, LEAST_SHARE)
    return u * agrees / size, share


def clip_of(xp: Any, rms: Scalar, threshold: Scalar) -> Scalar:
    """Return the factor that brings an update of this root mean square down to the threshold: 1 / max(1, RMS/d)."""
    return 1.0 / at_least(xp, rms / threshold, 1.0)


def trust_of(xp: Any, h: Any, lam: Scalar) -> Trust:
    """Return the numbers of a trust ratio, which have no effect if an option is off or missing."""
    low, high = bounds_of(h.trust_clip)
    adapts = choose(xp, lam == 0, 0.0, one_like(xp, lam)) if h.adapt == "decayed" else float(bool(h.adapt))
    return Trust(h.min_norm, low, high, h.zero_norm_ratio, adapts)


def floored(xp: Any, norm: Scalar, low: Scalar) -> Scalar:
    """Return the norm as a ratio takes it: at least `low`."""
    return norm if is_zero(low) else at_least(xp, norm, low)


def trusted(xp: Any, ratio: Scalar, defined: Any, k: Trust) -> Scalar:
    """Return the ratio if it is defined, another if a norm is 0, and 1 if it is turned off."""
    ratio = choose(xp, defined, ratio, k.undefined)
    return choose(xp, k.adapts == 0, one_like(xp, ratio), ratio)


def trust_ratio(xp: Any, w: Scalar, x: Scalar, k: Trust, most: Scalar = inf, eps: Scalar = 0.0) -> Scalar:
    """Return min(w, most) / (x + eps) within the requested bounds; both norms are already at least min_norm."""
    phi = at_most(xp, w, most)
    # The inner choice keeps 0/0 out of the branch not taken, and so out of its derivative.
    d = choose(xp, x == 0, 1.0, x)
    ratio = between(xp, phi / (d if is_zero(eps) else d + eps), k.low, k.high)
    return trusted(xp, ratio, (w != 0) & (x != 0), k)


class Length(NamedTuple):
    """How long a step is: p ← p − pace·ratio·r. Without numbers of a ratio that is 1."""

    pace: Scalar
    trust: Trust | None = None
    most: Scalar = inf  # of ‖p‖ in the ratio
    eps: Scalar = 0.0  # added to ‖r‖ in the ratio


def lengthened(
    xp: Any, h: Any, k: Length, R: Scalar | None, p: Array, r: Array, before: Moves = ()
) -> Asking[tuple[Scalar | None, Moves, dict[str, Array]]]:
    """Return R, the moves of a step along −r after those `before`, which p has taken, and what its length is made of.

    keep_norm:  then p ← R·p / ‖p‖, with R = ‖p‖ before this step, or before the first
    radial:     r ← r − (1 − radial)·(⟨p, r⟩ / ‖p‖²)·p, measured before
    """
    adapts, brakes = k.trust is not None and h.adapt is not False, h.radial is not None
    if not (adapts or brakes or h.keep_norm):
        return R, (*before, (-k.pace, r)), {"trust_ratio": 1.0}
    pp, rr, *pr = yield Squares(p), Squares(r), *((Sum(_products(p, r)),) if brakes else ())
    norm_p, norm_r = length(xp, pp, p), length(xp, rr, r)
    ratio = 1.0 if k.trust is None else _ratio(xp, norm_p, norm_r, k, k.trust)
    stats = {"weight_norm": norm_p, "update_norm": norm_r, "trust_ratio": ratio}
    size = k.pace * ratio
    if h.keep_norm:
        R, moves = yield from kept_norm(xp, h.keep_norm, R, p, norm_p, r, norm_r, size)
        return R, moves, stats
    if brakes:
        before = (*before, (size * _excess(xp, h.radial, norm_p, *pr), p))
    return R, (*before, (-size, r)), stats


def _ratio(xp: Any, norm_p: Scalar, norm_r: Scalar, k: Length, trust: Trust) -> Scalar:
    w, x = (floored(xp, norm, trust.min_norm) for norm in (norm_p, norm_r))
    return trust_ratio(xp, w, x, trust, k.most, k.eps)


def _products(p: Array, r: Array) -> Array:
    """Return p·r, whose sum is the length of r along p times ‖p‖."""
    return (p.conj() * r).real if is_complex(p) else p * r


def _excess(xp: Any, radial: Scalar, norm: Scalar, products: Scalar) -> Scalar:
    """Return how much of p the step along r has in it beyond what is allowed; none of a tensor of norm 0."""
    safe = choose(xp, norm == 0, 1.0, norm)
    return (1 - radial) * (products / safe / safe)


def first_norm(xp: Any, known: Scalar, norm: Scalar) -> Scalar:
    """Return the norm that a tensor keeps: the first that it had. 0 stands for none."""
    return choose(xp, known == 0, one_like(xp, known) * norm, known)


def kept_norm(
    xp: Any, how: Any, R: Scalar | None, p: Array, norm: Scalar, r: Array, length_r: Scalar, size: Scalar
) -> Asking[tuple[Scalar | None, Moves]]:
    """Return R, and the moves of p ← p − size·r to the kept norm: to R if the first is kept (`how`), else to that of p.

    What a step leaves is measured: the sums that are there do not tell how much that is where it all but cancels p.
    Before, it is scaled by `f`, so that its norm is at most twice the kept one: a number near 1 then does the rest, and
    only its difference from 1, which does not move the norm from step to step by its rounding, as the number would.
    """
    R = first_norm(xp, R, norm) if how == "first" else None
    wanted = norm if R is None else R
    unit = one_like(xp, wanted)  # a choice between an array and a number would take a dtype of its own
    norm, length_r, size = (unit * one for one in (norm, length_r, size))
    longest = at_least(xp, norm, size * length_r)
    f, f_less_1 = _factor(xp, wanted, longest)
    short = size * f
    q = add(xp, add(xp, p, f_less_1, p), -short, r)
    (qq,) = yield (Squares(q),)
    left = unit * length(xp, qq, q)

    _, more = _factor(xp, wanted, left)
    cancels = (left == 0) & (norm > 0)  # p stays where nothing has a direction
    first = choose(xp, cancels, 0 * unit if R is None else _factor(xp, wanted, norm)[1], f_less_1)
    second = choose(xp, cancels, 0 * unit, short)
    return R, ((first, p), (-second, r), (more, q))


def _factor(xp: Any, wanted: Scalar, norm: Scalar) -> tuple[Scalar, Scalar]:
    """Return the factor that gives a norm the wanted one, and the same less 1; 1 where one of them is 0."""
    there, one = (wanted > 0) & (norm > 0), one_like(xp, norm)
    norm = choose(xp, there, norm, one)
    return choose(xp, there, wanted / norm, one), choose(xp, there, (wanted - norm) / norm, 0 * one)
