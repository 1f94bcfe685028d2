"""LAMB (You et al., arXiv 1904.00962): Adam's direction, scaled in each tensor to the length lr·‖p‖.

    m ← b1·m + (1 − b1)·g
    v ← b2·v + (1 − b2)·g²
    u = (m / (1 − b1^t)) / (√(v / (1 − b2^t) + eps_root) + eps)
    r = u + lam·p
    p ← p − lr·ratio·r,   ratio = ‖p‖ / ‖r‖,  and zero_norm_ratio where a norm is 0

Departures, each an option:

    paper: ratio = ‖p‖/‖r‖           trust_clip, max_weight_norm, trust_eps:
                                         ratio = clip(min(‖p‖, φmax)/(‖r‖ + trust_eps), low, high)
                                     min_norm:  max(‖p‖, min_norm) and max(‖r‖, min_norm) instead of both norms
    paper: no L2                     l2:  g ← g + l2·p, besides lam
    paper: r = u + lam·p             decay="decoupled":  p ← p − lr·lam·p first, r = u;   "l2":  g ← g + lam·p, r = u
                                     peak_lr:  lam·lr/peak_lr instead of lam, so that decay fades as lr² does
    paper: the norm may change       keep_norm:  p ← R·(p − lr·ratio·r) / ‖p − lr·ratio·r‖,  R = ‖p‖ before this step;
                                     "first":  R = ‖p‖ before the first step
                                     radial:  r ← r − (1 − radial)·(⟨p, r⟩ / ‖p‖²)·p after the ratio
    paper: u, all of it              caution:  u ← u·[u·g > 0] / max(share of these elements, 1e-3)
    paper: the ratio everywhere      adapt=False:  ratio = 1;   "decayed":  ratio = 1 where lam = 0
    paper: m ← b1·m + (1 − b1)·g     grad_averaging=False:  m ← b1·m + g
    paper: corrected m and v         bias_correction=False:  neither;   "lr":  lr·√(1 − b2^t)/(1 − b1^t) instead of lr
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from math import inf
from typing import Literal, NamedTuple

from layerwise.options import fields
from layerwise.options.checks import NONE, Contradiction, number, one_of
from layerwise.options.fields import flag, option
from layerwise.options.settings import Caution, ClippedByNorm, L2Penalty, Scheduled, StepLength, WeightNormBound
from layerwise.options.values import Scalar, is_one, is_zero
from layerwise.rules.arrays import (
    add,
    add_overwriting,
    add_unless_off,
    after_moves,
    final,
    mix,
    shrinking,
    square,
    unless_off,
)
from layerwise.rules.clipping import cautious, prepare_gradient
from layerwise.rules.requests import (
    Array,
    Asking,
    Coefficients,
    Functions,
    Keep,
    Nonnegative,
    Now,
    PerLayer,
    Shape,
    Stepped,
)
from layerwise.rules.scalars import named, once_a_step, one_minus_power, product
from layerwise.rules.trust import Length, scaled_moves, trust_coefficients


@dataclass(frozen=True)
class Lamb(WeightNormBound, L2Penalty, StepLength, Caution, ClippedByNorm):
    """Options of LAMB. Its page in the documentation gives each its place in the formula."""

    lr: Scheduled = fields.lr(1e-3)
    betas: tuple[float, float] = fields.betas()
    eps: float = fields.eps(1e-6, "Added to the denominator of the direction, outside the root.")
    weight_decay: Scheduled = fields.weight_decay()
    _: KW_ONLY
    eps_root: float = fields.eps_root()
    bias_correction: bool | Literal["lr"] = option(
        True,
        one_of(True, False, "lr"),
        'Correct m and v for their start at 0: in the direction (True), not at all (False), or on the step ("lr").',
        'Pass True, False, or "lr" to correct the step instead of the direction.',
    )
    decay: Literal["ratio", "decoupled", "l2"] = fields.place_of_decay()
    peak_lr: float | None = option(
        None,
        number(0, above=True) | NONE,
        'Also multiply decoupled decay by lr/peak_lr, so that it fades like lr²; needs decay="decoupled". None does '
        "not.",
        "Pass the largest lr of the schedule, or None.",
    )
    grad_averaging: bool = flag(True, "Multiply the gradient by 1 - b1 as it enters m.")
    trust_eps: float = option(
        0.0,
        number(0),
        "Added to the denominator of the trust ratio.",
        "Pass a small number such as trust_eps=1e-8, or 0.",
    )

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        apart = self.decay == "decoupled"
        way_out = 'Pass decay="decoupled" as well, or drop it.'
        yield self.peak_lr is not None and not apart, "peak_lr", f"None with decay={self.decay!r}", way_out

    @property
    def has_kernels(self) -> bool:
        return super().has_kernels and not (self.caution and self.keep_norm)


class State(NamedTuple):
    exp_avg: Array  # m
    exp_avg_sq: Nonnegative  # v
    norm: PerLayer = None  # R; None unless keep_norm="first"


def shapes(h: Lamb, shape: Shape) -> State:
    return State(exp_avg=shape, exp_avg_sq=shape, norm=h.shape_of_norm(shape))


@once_a_step
def coefficients(xp: Functions, h: Lamb, now: Now) -> Coefficients:
    (b1, b2), lr, lam = h.betas, now.lr, now.weight_decay
    c1, c2 = one_minus_power(xp, b1, now.t), one_minus_power(xp, b2, now.t)
    corrected = h.bias_correction is True
    return named(
        l2=h.l2 + lam if h.decay == "l2" else h.l2,  # g ← g + l2·p
        shrink=_shrink(lr, lam, h),  # p ← p − shrink·p, before everything else
        b1=b1,  # m ← b1·m + a1·g
        a1=1 - b1 if h.grad_averaging else 1.0,
        b2=b2,  # v ← b2·v + a2·g²
        a2=1 - b2,
        c1=c1 if corrected else 1.0,  # u = m / (c1·√(c2·v + eps_root) + eps)
        c2=1 / c2 if corrected else 1.0,
        eps_root=h.eps_root,
        eps=c1 * h.eps if corrected else h.eps,
        lam=lam if h.decay == "ratio" else 0.0,  # r = u + lam·p
        lr=lr * (c2**0.5 / c1) if h.bias_correction == "lr" else lr,  # p ← p − lr·ratio·r
        max_norm=inf if h.max_weight_norm is None else h.max_weight_norm,
        trust_eps=h.trust_eps,
        trust=trust_coefficients(xp, h, lam),
    )


def _shrink(lr: Scalar, lam: Scalar, h: Lamb) -> Scalar:
    """Return the fraction by which p decays before everything else."""
    if h.decay != "decoupled":
        return 0.0
    return product(lr, lam) if h.peak_lr is None else product(lr, lam) * (lr / h.peak_lr)


def step(xp: Functions, p: Array, g: Array, state: State, h: Lamb, now: Now) -> Asking[Stepped]:
    k, (m, v, R) = coefficients(xp, h, now), state
    g = add_unless_off(xp, (yield from prepare_gradient(xp, g, h, now)), k.l2, p)
    moves = shrinking(xp, k.shrink, p)
    p = after_moves(xp, p, moves)

    m = mix(xp, k.b1, m, k.a1, g)
    v = mix(xp, k.b2, v, k.a2, square(g))
    m, v = final(xp, m, v)

    u = _direction(xp, m, v, k)
    m, v, _ = yield Keep(State(m, v, R))
    u, agreeing = yield from cautious(xp, u, g, h)
    r = u if is_zero(k.lam) else add_overwriting(xp, u, k.lam, unless_off(xp, k.lam, p))
    del g, u  # while the sums are computed, only p and r are kept

    how_long = Length(k.lr, k.trust, k.max_norm, k.trust_eps)
    R, moves, stats = yield from scaled_moves(xp, h, how_long, R, p, r, moves)
    return Stepped(moves, State(m, v, R), {**stats, **agreeing})


def _direction(xp: Functions, m: Array, v: Array, k: Coefficients) -> Array:
    """Return m / (c1·√(c2·v + eps_root) + eps): c1 moves m's bias correction below, which saves a division."""
    d = v if is_one(k.c2) else k.c2 * v
    d = xp.sqrt(d if is_zero(k.eps_root) else d + k.eps_root)
    d = add(xp, k.eps, k.c1, d)  # one name for all, so that no intermediate array is held longer than needed
    return m / d
