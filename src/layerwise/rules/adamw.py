"""AdamW (Loshchilov & Hutter, arXiv 1711.05101): Adam with decoupled weight decay, without a trust ratio.

    m ← b1·m + (1 − b1)·g
    v ← b2·v + (1 − b2)·g²
    u = (m / (1 − b1^t)) / (√(v / (1 − b2^t) + eps_root) + eps)
    p ← p − lr·lam·p − lr·u

Departures, each an option:

    paper: p ← p − lr·lam·p          decay="l2":  g ← g + lam·p first, as in Adam (Kingma & Ba, arXiv 1412.6980)
    paper: u of m                    nesterov:  b1·m/(1 − b1^(t+1)) + (1 − b1)·g/(1 − b1^t) in the place of m/(1 − b1^t)
                                     (NAdam, Dozat 2016)

The paper's decay is lam times the schedule alone; with lr in it, as in all implementations, lam is that over the peak
of lr. AMSGrad's maximum of v is left out.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple

from layerwise.options import fields
from layerwise.options.fields import flag
from layerwise.options.settings import ClippedByNorm, Scheduled, StoredMomentum
from layerwise.options.values import is_zero
from layerwise.rules.arrays import add, add_unless_off, final, mix, shrinking, square
from layerwise.rules.clipping import prepare_gradient
from layerwise.rules.requests import Array, Asking, Coefficients, Functions, Nonnegative, Now, Shape, Stepped
from layerwise.rules.scalars import named, once_a_step, one_minus_power, product


@dataclass(frozen=True)
class AdamW(StoredMomentum, ClippedByNorm):
    """Options of AdamW. Its page in the documentation gives each its place in the formula."""

    lr: Scheduled = fields.lr(1e-3)
    betas: tuple[float, float] = fields.betas()
    eps: float = fields.eps(1e-8, "Added to the denominator of the step, outside the root.")
    weight_decay: Scheduled = fields.weight_decay(0.01, optax_default=1e-4)
    _: KW_ONLY
    eps_root: float = fields.eps_root()
    decay: Literal["decoupled", "l2"] = fields.decay("Adam")
    nesterov: bool = flag(False, "Use Nesterov's momentum, as in NAdam.")
    momentum_dtype: Any = fields.momentum_dtype()


class State(NamedTuple):
    exp_avg: Array  # m
    exp_avg_sq: Nonnegative  # v


def shapes(h: AdamW, shape: Shape) -> State:
    return State(exp_avg=shape, exp_avg_sq=shape)


@once_a_step
def coefficients(xp: Functions, h: AdamW, now: Now) -> Coefficients:
    (b1, b2), lr, lam = h.betas, now.lr, now.weight_decay
    c1, c2 = one_minus_power(xp, b1, now.t), one_minus_power(xp, b2, now.t)
    return named(
        l2=lam if h.decay == "l2" else 0.0,  # g ← g + l2·p
        shrink=product(lr, lam) if h.decay == "decoupled" else 0.0,  # p ← p − shrink·p
        b1=b1,  # m ← b1·m + a1·g
        a1=1 - b1,
        b2=b2,  # v ← b2·v + a2·g²
        a2=1 - b2,
        # m ← 2·(ahead·m + beside·g) in the step of NAdam, which may be larger than either
        ahead=b1 / one_minus_power(xp, b1, now.t + 1) / 2,
        beside=(1 - b1) / c1 / 2,
        c2=1 / c2,  # u = m / (√(c2·v + eps_root) + eps)
        eps_root=h.eps_root,
        eps=h.eps,
        lr=2 * lr if h.nesterov else lr / c1,  # p ← p − lr·u
    )


def step(xp: Functions, p: Array, g: Array, state: State, h: AdamW, now: Now) -> Asking[Stepped]:
    k, (m, v) = coefficients(xp, h, now), state
    g = yield from prepare_gradient(xp, g, h, now)
    g = add_unless_off(xp, g, k.l2, p)

    m = mix(xp, k.b1, m, k.a1, g)
    v = mix(xp, k.b2, v, k.a2, square(g))
    m, v = final(xp, m, v)

    # The correction of m is in lr, or in both terms of NAdam's, whose 2 is in lr.
    ahead = add(xp, k.ahead * m, k.beside, g) if h.nesterov else m
    d = k.c2 * v
    d = xp.sqrt(d if is_zero(k.eps_root) else d + k.eps_root)
    d = d + k.eps
    u = ahead / d
    return Stepped((*shrinking(xp, k.shrink, p), (-k.lr, u)), State(m, v), {"trust_ratio": 1.0})
