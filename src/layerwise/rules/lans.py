"""LANS (Zheng et al., arXiv 2006.13484): LAMB with normalized gradients and Nesterov momentum in the direction.

    ĝ = g / ‖g‖,  and 0 where ‖g‖ is 0
    m ← b1·m + (1 − b1)·ĝ
    v ← b2·v + (1 − b2)·ĝ²
    d = √(v / (1 − b2^t) + eps_root) + eps
    r = (m / (1 − b1^t)) / d + lam·p
    c = ĝ / d + lam·p
    p ← p − lr·(b1·(‖p‖ / ‖r‖)·r + (1 − b1)·(‖p‖ / ‖c‖)·c),  with zero_norm_ratio for a ratio with a norm of 0

Clipping by norm would have no effect, so it is not an option.

Departures, each an option:

    paper: ratios ‖p‖/‖r‖, ‖p‖/‖c‖   trust_clip, max_weight_norm:  clip(min(‖p‖, φmax)/‖·‖, low, high)
                                     min_norm:  max(‖·‖, min_norm) instead of each norm
    paper: the ratios everywhere     adapt=False:  both are 1;   "decayed":  both are 1 where lam = 0
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import inf
from typing import NamedTuple

from layerwise.options import fields
from layerwise.options.settings import Scheduled, WeightNormBound
from layerwise.options.values import is_zero
from layerwise.rules.arrays import add_unless_off, final, length, mix, scaled, square
from layerwise.rules.clipping import prepare_gradient
from layerwise.rules.requests import (
    Array,
    Asking,
    Coefficients,
    Functions,
    Keep,
    Nonnegative,
    Now,
    Shape,
    Squares,
    Stepped,
)
from layerwise.rules.scalars import choose, named, once_a_step, one_minus_power, vanishes
from layerwise.rules.trust import SplitRatio, norm_at_least, trust_coefficients, trust_ratio


@dataclass(frozen=True)
class Lans(WeightNormBound):
    """Options of LANS. Its page in the documentation gives each its place in the formula."""

    lr: Scheduled = fields.lr(1e-3)
    betas: tuple[float, float] = fields.betas()
    eps: float = fields.eps(1e-6, "Added to the denominator of both directions.")
    weight_decay: Scheduled = fields.weight_decay()
    _: KW_ONLY
    eps_root: float = fields.eps_root()


class State(NamedTuple):
    exp_avg: Array  # m
    exp_avg_sq: Nonnegative  # v


def shapes(h: Lans, shape: Shape) -> State:
    return State(exp_avg=shape, exp_avg_sq=shape)


@once_a_step
def coefficients(xp: Functions, h: Lans, now: Now) -> Coefficients:
    b1, b2 = h.betas
    return named(
        b1=b1,  # m ← b1·m + a1·ĝ
        a1=1 - b1,
        b2=b2,  # v ← b2·v + a2·ĝ²
        a2=1 - b2,
        c1=1 / one_minus_power(xp, b1, now.t),  # r = c1·m / d + lam·p
        c2=1 / one_minus_power(xp, b2, now.t),  # d = √(c2·v + eps_root) + eps
        eps_root=h.eps_root,
        eps=h.eps,
        lam=now.weight_decay,
        lr_r=now.lr * b1,  # p ← p − lr_r·ratio_r·r − lr_c·ratio_c·c
        lr_c=now.lr * (1 - b1),
        max_norm=inf if h.max_weight_norm is None else h.max_weight_norm,
        trust=trust_coefficients(xp, h, now.weight_decay),
    )


def step(xp: Functions, p: Array, g: Array, state: State, h: Lans, now: Now) -> Asking[Stepped]:
    k, (m, v) = coefficients(xp, h, now), state
    g = yield from _normalized(xp, (yield from prepare_gradient(xp, g, h, now)))
    m, v = final(xp, mix(xp, k.b1, m, k.a1, g), mix(xp, k.b2, v, k.a2, square(g)))

    d = k.c2 * v
    d = xp.sqrt(d if is_zero(k.eps_root) else d + k.eps_root)
    d = d + k.eps
    r, c = k.c1 * m / d, g / d
    r, c = add_unless_off(xp, r, k.lam, p), add_unless_off(xp, c, k.lam, p)
    del g, d  # while the sums are computed, only p, r and c are kept
    m, v = yield Keep(State(m, v))

    (ratio_r, ratio_c), stats = yield from _ratios(xp, p, r, c, k, h)
    moves = [(-lr * one.factor, scaled(one.unit, x)) for lr, one, x in ((k.lr_r, ratio_r, r), (k.lr_c, ratio_c, c))]
    return Stepped(tuple(moves), State(m, v), stats)


def _normalized(xp: Functions, g: Array) -> Asking[Array]:
    """Return g / ‖g‖; a gradient of zeros stays zero."""
    (gg,) = yield (Squares(g),)
    norm = length(xp, gg, g)
    size = choose(xp, vanishes(xp, norm), 1.0, norm)
    return g / size


def _ratios(
    xp: Functions, p: Array, r: Array, c: Array, k: Coefficients, h: Lans
) -> Asking[tuple[tuple[SplitRatio, SplitRatio], dict[str, Array]]]:
    """Return ‖p‖/‖r‖ and ‖p‖/‖c‖ within the requested bounds."""
    if h.adapt is False:
        return (SplitRatio(1.0, 1.0), SplitRatio(1.0, 1.0)), {"trust_ratio": 1.0}
    pp, rr, cc = yield Squares(p), Squares(r), Squares(c)
    norm_p, norm_r, norm_c = length(xp, pp, p), length(xp, rr, r), length(xp, cc, c)
    w, x, y = (norm_at_least(xp, norm, k.trust.min_norm) for norm in (norm_p, norm_r, norm_c))
    ratio_r, ratio_c = (trust_ratio(xp, w, one, k.trust, k.max_norm) for one in (x, y))
    return (ratio_r, ratio_c), {"weight_norm": norm_p, "update_norm": norm_r, "trust_ratio": ratio_r.value}
