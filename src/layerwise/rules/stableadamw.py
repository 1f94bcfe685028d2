"""StableAdamW (Wortsman et al., arXiv 2304.13013): AdamW with shorter steps when v lags behind the gradient.

    b1_t = b1·(1 − b1^(t−1)) / (1 − b1^t),   b2_t likewise
    m ← b1_t·m + (1 − b1_t)·g
    v ← b2_t·v + (1 − b2_t)·g²
    RMS = √mean(g² / max(v, eps²))
    size = lr / max(1, RMS/d)
    p ← p − size·lam·p − size·m / (√v + eps)

Averages with these decay rates are Adam's m / (1 − b1^t) and v / (1 − b2^t): without the division by RMS it is AdamW.

Departures, each an option:

    paper: d = 1                     clip_threshold=None:  size = lr, which is AdamW
    paper: p ← p − size·lam·p        decay_scale="lr":  p ← p − lr·lam·p;   "none":  p ← p − lam·p
    paper: √v and v                  eps_root:  √(v + eps_root) and v + eps_root
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal, NamedTuple

from layerwise.options import fields
from layerwise.options.settings import ClippedByNorm, Scheduled
from layerwise.options.values import is_zero
from layerwise.rules.arrays import final, length, mix, shrinking, square
from layerwise.rules.clipping import clip_of, prepare_gradient
from layerwise.rules.requests import (
    Array,
    Asking,
    Coefficients,
    Functions,
    Keep,
    MeanSquare,
    Nonnegative,
    Now,
    Shape,
    Stepped,
)
from layerwise.rules.scalars import named, once_a_step, one_minus_power, product


@dataclass(frozen=True)
class StableAdamW(ClippedByNorm):
    """Options of StableAdamW. Its page in the documentation gives each its place in the formula."""

    lr: Scheduled = fields.lr(1e-3)
    betas: tuple[float, float] = fields.betas(0.9, 0.99)
    eps: float = fields.eps(
        1e-8, "Added to the denominator of the direction; lower bound of the denominator in the root mean square."
    )
    weight_decay: Scheduled = fields.weight_decay()
    _: KW_ONLY
    eps_root: float = fields.eps_root()
    clip_threshold: float | None = fields.clip_threshold()
    decay_scale: Literal["step", "lr", "none"] = fields.decay_scale("step", "lr", "none")


class State(NamedTuple):
    exp_avg: Array  # m
    exp_avg_sq: Nonnegative  # v


def shapes(h: StableAdamW, shape: Shape) -> State:
    return State(exp_avg=shape, exp_avg_sq=shape)


@once_a_step
def coefficients(xp: Functions, h: StableAdamW, now: Now) -> Coefficients:
    (b1, b2), lr, lam = h.betas, now.lr, now.weight_decay
    a1, a2 = ((1 - b) / one_minus_power(xp, b, now.t) for b in (b1, b2))
    return named(
        b1=1 - a1,  # m ← b1·m + a1·g
        a1=a1,
        b2=1 - a2,  # v ← b2·v + a2·g²
        a2=a2,
        eps_root=h.eps_root,
        eps=h.eps,
        threshold=1.0 if h.clip_threshold is None else h.clip_threshold,  # size = lr / max(1, RMS/threshold)
        lr=lr,
        lam={"step": 0.0, "lr": product(lr, lam), "none": lam}[h.decay_scale],  # p ← p − (lam + lam_size·size)·p
        lam_size=lam if h.decay_scale == "step" else 0.0,
    )


def step(xp: Functions, p: Array, g: Array, state: State, h: StableAdamW, now: Now) -> Asking[Stepped]:
    k, (m, v) = coefficients(xp, h, now), state
    g = yield from prepare_gradient(xp, g, h, now)
    m, v = final(xp, mix(xp, k.b1, m, k.a1, g), mix(xp, k.b2, v, k.a2, square(g)))

    root_v = xp.sqrt(v if is_zero(k.eps_root) else v + k.eps_root)
    r = m / (root_v + k.eps)
    wanted = [] if h.clip_threshold is None else [MeanSquare(g / xp.clip(root_v, k.eps, None))]
    del g, root_v  # while the sum is computed, only p and r are kept
    m, v = yield Keep(State(m, v))

    size, stats = k.lr, {"trust_ratio": 1.0}
    if wanted:
        (uu,) = yield (wanted.pop(),)
        rms = length(xp, uu, r)
        ratio = clip_of(xp, rms, k.threshold)
        size, stats = k.lr * ratio, {"update_rms": rms, "trust_ratio": ratio}
    lam = k.lam if is_zero(k.lam_size) else k.lam + k.lam_size * size
    return Stepped((*shrinking(xp, lam, p), (-size, r)), State(m, v), stats)
