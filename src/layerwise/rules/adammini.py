"""Adam-mini (Zhang et al., arXiv 2406.16793): Adam with one second moment for each block of weights.

    m ← b1·m + (1 − b1)·g
    v ← b2·v + (1 − b2)·mean(g²),  one number of each block, or of the tensor
    p ← p − lr·lam·p − lr·(m / (1 − b1^t)) / (√(v / (1 − b2^t) + eps_root) + eps)

`blocks` defines the blocks of weights. The paper defines them by the parts of a transformer.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, NamedTuple

from layerwise.options import fields
from layerwise.options.settings import ClippedByNorm, OneNumberPerLayer, Scheduled
from layerwise.rules.arrays import length, mix, shrinking
from layerwise.rules.clipping import prepare_gradient
from layerwise.rules.requests import Array, Asking, Coefficients, Functions, MeanSquare, Now, PerLayer, Shape, Stepped
from layerwise.rules.scalars import named, once_a_step, one_minus_power, product, root


@dataclass(frozen=True)
class AdamMini(OneNumberPerLayer, ClippedByNorm):
    """Options of Adam-mini. Its page in the documentation gives each its place in the formula."""

    by_row: ClassVar[bool] = True

    lr: Scheduled = fields.lr(1e-3)
    betas: tuple[float, float] = fields.betas()
    eps: float = fields.eps(1e-8, "Added to the root of v, which m is divided by.")
    weight_decay: Scheduled = fields.weight_decay()
    _: KW_ONLY
    eps_root: float = fields.eps_root()


class State(NamedTuple):
    exp_avg: Array  # m
    exp_avg_sq: PerLayer  # v


def shapes(h: AdamMini, shape: Shape) -> State:
    return State(exp_avg=shape, exp_avg_sq=h.layer_shape(shape))


@once_a_step
def coefficients(xp: Functions, h: AdamMini, now: Now) -> Coefficients:
    b1, b2 = h.betas
    return named(
        b1=b1,  # m ← b1·m + a1·g
        a1=1 - b1,
        b2=b2,  # v ← b2·v + a2·mean(g²)
        a2=1 - b2,
        c2=1 / one_minus_power(xp, b2, now.t),  # p ← p − lr·m / (√(c2·v + eps_root) + eps)
        eps_root=h.eps_root,
        eps=h.eps,
        lr=now.lr / one_minus_power(xp, b1, now.t),  # corrected for m's start at 0
        shrink=product(now.lr, now.weight_decay),  # p ← p − shrink·p first
    )


def step(xp: Functions, p: Array, g: Array, state: State, h: AdamMini, now: Now) -> Asking[Stepped]:
    k, (m, v) = coefficients(xp, h, now), state
    g = yield from prepare_gradient(xp, g, h, now)
    (gg,) = yield (MeanSquare(g),)
    rms = length(xp, gg, g)
    v = k.b2 * v + k.a2 * (rms * rms)
    d = root(xp, k.c2 * v + k.eps_root) + k.eps

    m = mix(xp, k.b1, m, k.a1, g)
    moves = *shrinking(xp, k.shrink, p), (-k.lr / d, m)
    return Stepped(moves, State(m, v), {"gradient_rms": rms, "average_rms": root(xp, v), "trust_ratio": 1.0})
