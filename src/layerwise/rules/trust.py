"""The length of a step: the trust ratio and its bounds, and steps that keep the norm of the weights."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from layerwise.options.settings import StepLength, TrustRatio
from layerwise.options.values import Scalar, is_infinite, is_one, is_zero
from layerwise.rules.arrays import add, is_complex, length, scaled, still
from layerwise.rules.requests import Array, Asking, Functions, Moves, Squares, Sum
from layerwise.rules.scalars import at_least, at_most, bounds_of, choose, exists, leveling_power, one_like, vanishes


class TrustCoefficients(NamedTuple):
    """Numbers of a trust ratio: ratio = clip(‖p‖ / ‖·‖, low, high), no norm below min_norm."""

    min_norm: Scalar
    low: Scalar
    high: Scalar
    undefined: Scalar  # the ratio if a norm is 0
    adapts: Scalar  # 0 turns the ratio off: it is 1


def trust_coefficients(xp: Functions, h: TrustRatio, lam: Scalar) -> TrustCoefficients:
    """Return the numbers of a trust ratio. An option that is off or missing has numbers without effect."""
    low, high = bounds_of(h.trust_clip)
    adapts = choose(xp, vanishes(xp, lam), 0.0, one_like(xp, lam)) if h.adapt == "decayed" else float(bool(h.adapt))
    return TrustCoefficients(h.min_norm, low, high, h.zero_norm_ratio, adapts)


def norm_at_least(xp: Functions, norm: Scalar, low: Scalar) -> Scalar:
    """Return the norm with the lower bound `low`."""
    return norm if is_zero(low) else at_least(xp, norm, low)


class SplitRatio(NamedTuple):
    """A ratio in two factors, because the ratio may leave the dtype although the step does not: lr·ratio·r =
    (lr·factor)·(unit·r).
    """

    factor: Scalar
    unit: Scalar  # a power of two, by which r is about as long as 1

    @property
    def value(self) -> Scalar:
        return self.factor * self.unit


def bounded_ratio(
    xp: Functions, above: Scalar, below: Scalar, defined: object, k: TrustCoefficients, clipped_by: Scalar = 1.0
) -> SplitRatio:
    """Return above / below / clipped_by within the bounds; `zero` if a norm is 0, and 1 if the ratio is turned off."""
    # If the weights are so large that 2^-24 of their length leaves the dtype, they have left it themselves.
    unit = leveling_power(xp, below * choose(xp, above > 2.0**64, 2.0**-24, one_like(xp, above)))
    factor = above / (below * unit)
    factor = factor if is_one(clipped_by) else factor / clipped_by
    factor = factor if is_infinite(k.low) else at_least(xp, factor, k.low / unit)
    factor = factor if is_infinite(k.high) else at_most(xp, factor, k.high / unit)
    factor = choose(xp, defined, factor, k.undefined / unit)
    return SplitRatio(choose(xp, k.adapts == 0, 1 / unit, factor), unit)


def trust_ratio(
    xp: Functions,
    w: Scalar,
    x: Scalar,
    k: TrustCoefficients,
    most: Scalar = inf,
    eps: Scalar = 0.0,
    scale: Scalar = 1.0,
) -> SplitRatio:
    """Return scale·min(w, most) / (x + eps) within the requested bounds; both norms are already at least min_norm."""
    phi = at_most(xp, w, most)
    phi = phi if is_one(scale) else scale * phi
    # The choice keeps 0/0 out of the branch that is not taken, and so out of its derivative.
    d = choose(xp, vanishes(xp, x), 1.0, x)
    return bounded_ratio(xp, phi, d if is_zero(eps) else d + eps, exists(xp, w) & exists(xp, x), k)


class Length(NamedTuple):
    """The length of a step: p ← p − pace·ratio·r. Without a trust ratio, ratio is 1."""

    pace: Scalar
    trust: TrustCoefficients | None = None
    most: Scalar = inf  # of ‖p‖ in the ratio
    eps: Scalar = 0.0  # added to ‖r‖ in the ratio
    scale: Scalar = 1.0  # of ‖p‖ in the ratio; the ratio for a norm of 0 is not bounded


def scaled_moves(
    xp: Functions, h: StepLength, k: Length, R: Scalar | None, p: Array, r: Array, before: Moves = ()
) -> Asking[tuple[Scalar | None, Moves, dict[str, Array]]]:
    """Return R, the moves of a step along −r after the moves `before`, and the numbers that determine its length.

    keep_norm:  then p ← R·p / ‖p‖, with R = ‖p‖ before this step, or before the first
    radial:     r ← r − (1 − radial)·(⟨p, r⟩ / ‖p‖²)·p, measured before
    """
    adapts = k.trust is not None and h.adapt is not False
    if not (adapts or h.keep_norm or h.radial is not None):
        return R, (*before, (-k.pace, r)), {"trust_ratio": 1.0}
    pp, rr = yield Squares(p), Squares(r)
    norm_p, norm_r = length(xp, pp, p), length(xp, rr, r)
    ratio = still(xp, _ratio(xp, norm_p, norm_r, k))
    stats = {"weight_norm": norm_p, "update_norm": norm_r, "trust_ratio": 1.0 if k.trust is None else ratio.value}
    size, r = k.pace * ratio.factor, scaled(ratio.unit, r)
    if h.keep_norm:
        R, moves = yield from norm_keeping_moves(xp, h.keep_norm, R, p, norm_p, r, ratio.unit * norm_r, size)
        return R, moves, stats
    if h.radial is not None:
        share, q = yield from _along(xp, p, norm_p, r)
        before = (*before, (size * ((1 - h.radial) * share), q))
    return R, (*before, (-size, r)), stats


def _ratio(xp: Functions, norm_p: Scalar, norm_r: Scalar, k: Length) -> SplitRatio:
    if k.trust is None:
        unit = leveling_power(xp, norm_r)
        return SplitRatio(1 / unit, unit)
    w, x = (norm_at_least(xp, norm, k.trust.min_norm) for norm in (norm_p, norm_r))
    return trust_ratio(xp, w, x, k.trust, k.most, k.eps, k.scale)


def _products(p: Array, r: Array) -> Array:
    """Return p·r. Its sum is ‖p‖ times the length of r along p."""
    return (p.conj() * r).real if is_complex(p) else p * r


def _along(xp: Functions, p: Array, norm: Scalar, r: Array) -> Asking[tuple[Scalar, Array]]:
    """Return ⟨q, r⟩ / ‖q‖² and q, which is p times a power of two: products of p itself may leave the dtype."""
    unit = leveling_power(xp, norm)
    q, size = scaled(unit, p), norm * unit
    (products,) = yield (Sum(_products(q, r)),)
    safe = choose(xp, vanishes(xp, size), 1.0, size)
    return products / safe / safe, q


def first_norm(xp: Functions, known: Scalar, norm: Scalar) -> Scalar:
    """Return the norm that a tensor keeps: its first norm. 0 means that there is none yet."""
    return choose(xp, vanishes(xp, known), one_like(xp, known) * norm, known)


def norm_keeping_moves(
    xp: Functions, how: object, R: Scalar | None, p: Array, norm: Scalar, r: Array, length_r: Scalar, size: Scalar
) -> Asking[tuple[Scalar | None, Moves]]:
    """Return R, and the moves of p ← p − size·r followed by the scaling to the kept norm: R if `how` is "first",
    otherwise ‖p‖.

    The norm after the step is measured, because the sums at hand cannot give it accurately if the step almost cancels
    p. Before that, p is scaled by `f`, so that its norm is at most twice the kept one. A number near 1 then does the
    rest, and only its difference from 1 is applied: its rounding would otherwise change the norm from step to step.
    """
    R = first_norm(xp, R, norm) if how == "first" else None
    wanted = norm if R is None else R
    unit = one_like(xp, wanted)  # choosing between an array and a number would create a dtype of its own
    norm, length_r, size = (unit * one for one in (norm, length_r, size))
    longest = at_least(xp, norm, size * length_r)
    f, f_less_1 = _factor(xp, wanted, longest)
    short = size * f
    q = add(xp, add(xp, p, f_less_1, p), -short, r)
    (qq,) = yield (Squares(q),)
    left = unit * length(xp, qq, q)

    _, more = _factor(xp, wanted, left)
    cancels = vanishes(xp, left) & (norm > 0)  # p stays if nothing has a direction
    first = choose(xp, cancels, 0 * unit if R is None else _factor(xp, wanted, norm)[1], f_less_1)
    second = choose(xp, cancels, 0 * unit, short)
    return R, ((first, p), (-second, r), (more, q))


def _factor(xp: Functions, wanted: Scalar, norm: Scalar) -> tuple[Scalar, Scalar]:
    """Return the factor that gives a norm the desired value, and this factor minus 1; the factor is 1 if one of them is
    0.
    """
    there, one = (wanted > 0) & (norm > 0), one_like(xp, norm)
    norm = choose(xp, there, norm, one)
    return choose(xp, there, wanted / norm, one), choose(xp, there, (wanted - norm) / norm, 0 * one)
