"""Lion (Chen et al., arXiv 2302.06675): the sign of a mixture of momentum and gradient.

    u = sign(b1·m + (1 − b1)·g)
    m ← b2·m + (1 − b2)·g
    r = u + lam·p
    p ← p − lr·r

Departures, each an option:

    paper: steps of lr               adapt:  p ← p − lr·ratio·r,  ratio = ‖p‖ / ‖r‖,  and zero_norm_ratio where a norm
                                     is 0;   "decayed":  only where lam ≠ 0
    paper: no bounds                 trust_clip:  ratio ← clip(ratio, low, high);  min_norm:  max(‖·‖, min_norm)
    paper: r = u + lam·p             decay="decoupled":  p ← p − lr·lam·p first, r = u;   "l2":  g ← g + lam·p, r = u
    paper: the norm may change       keep_norm:  p ← R·(p − lr·ratio·r) / ‖p − lr·ratio·r‖,  R = ‖p‖ before this step;
                                     "first":  R = ‖p‖ before the first step
                                     radial:  r ← r − (1 − radial)·(⟨p, r⟩ / ‖p‖²)·p after the ratio
    paper: u, all of it              caution:  u ← u·[u·g > 0] / max(share of these elements, 1e-3)

The sign of a complex number is that number divided by its absolute value.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple

from layerwise.options import fields
from layerwise.options.settings import Adapt, Caution, ClippedByNorm, Scheduled, StepLength, StoredMomentum
from layerwise.rules.arrays import add, add_unless_off, after_moves, final, is_complex, mix, shrinking, square
from layerwise.rules.clipping import cautious, prepare_gradient
from layerwise.rules.requests import Array, Asking, Coefficients, Functions, Keep, Now, PerLayer, Shape, Stepped
from layerwise.rules.scalars import named, once_a_step, product, root, vanishes
from layerwise.rules.trust import Length, scaled_moves, trust_coefficients


@dataclass(frozen=True)
class Lion(StoredMomentum, StepLength, Caution, ClippedByNorm):
    """Options of Lion. Its page in the documentation gives each its place in the formula."""

    lr: Scheduled = fields.lr(1e-4)
    betas: tuple[float, float] = fields.betas(0.9, 0.99)
    weight_decay: Scheduled = fields.weight_decay(optax_default=1e-3)
    _: KW_ONLY
    adapt: Adapt = fields.adapt(False)
    decay: Literal["ratio", "decoupled", "l2"] = fields.place_of_decay()
    momentum_dtype: Any = fields.momentum_dtype()

    @property
    def has_kernels(self) -> bool:
        return super().has_kernels and not self.keep_norm


class State(NamedTuple):
    exp_avg: Array  # m
    norm: PerLayer = None  # R; None unless keep_norm="first"


def shapes(h: Lion, shape: Shape) -> State:
    return State(exp_avg=shape, norm=h.shape_of_norm(shape))


@once_a_step
def coefficients(xp: Functions, h: Lion, now: Now) -> Coefficients:
    (b1, b2), lr, lam = h.betas, now.lr, now.weight_decay
    return named(
        l2=lam if h.decay == "l2" else 0.0,  # g ← g + l2·p
        shrink=product(lr, lam) if h.decay == "decoupled" else 0.0,  # p ← p − shrink·p, before everything else
        b1=b1,  # u = sign(b1·m + a1·g)
        a1=1 - b1,
        b2=b2,  # m ← b2·m + a2·g
        a2=1 - b2,
        lam=lam if h.decay == "ratio" else 0.0,  # r = u + lam·p
        lr=lr,  # p ← p − lr·ratio·r
        trust=trust_coefficients(xp, h, lam),
    )


def step(xp: Functions, p: Array, g: Array, state: State, h: Lion, now: Now) -> Asking[Stepped]:
    k, (m, R) = coefficients(xp, h, now), state
    g = add_unless_off(xp, (yield from prepare_gradient(xp, g, h, now)), k.l2, p)
    moves = shrinking(xp, k.shrink, p)
    p = after_moves(xp, p, moves)

    u = _sign(xp, add(xp, k.a1 * g, k.b1, m))
    (m,) = final(xp, mix(xp, k.b2, m, k.a2, g))
    m, _ = yield Keep(State(m, R))
    u, agreeing = yield from cautious(xp, u, g, h)
    r = add_unless_off(xp, u, k.lam, p)

    R, moves, stats = yield from scaled_moves(xp, h, Length(k.lr, k.trust), R, p, r, moves)
    return Stepped(moves, State(m, R), {**stats, **agreeing})


def _sign(xp: Functions, x: Array) -> Array:
    """Return 1 or −1, or x itself if it is 0 or nan."""
    if is_complex(x):
        size = root(xp, square(x))
        return x / xp.where(vanishes(xp, size), xp.ones_like(size), size)
    if hasattr(xp, "signs"):
        return xp.signs(x)
    one = xp.ones_like(x)
    return xp.where(x > 0, one, xp.where(x < 0, -one, x))
