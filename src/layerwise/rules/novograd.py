"""NovoGrad (Ginsburg et al., arXiv 1905.11286): momentum SGD on gradients divided by a running norm.

    v ← b2·v + (1 − b2)·‖g‖²,  and ‖g‖² in the first step: one number of each layer
    m ← b1·m + g / (√(v + eps_root) + eps) + lam·p
    p ← p − lr·m

Departures, each an option:

    paper: v = ‖g‖² first            v_start="zero":  v starts at 0;   "nonzero":  v = ‖g‖² wherever it is still 0
    paper: m ← b1·m + …              grad_averaging=True:  m ← b1·m + (1 − b1)·(…)
    paper: m starts at 0             m_start="direction":  m is what enters it first, without 1 − b1
    paper: g is divided by √v        normalize="momentum":  m ← b1·m + g + lam·p,  p ← p − lr·m/(√(v + …) + eps)
    paper: lam·p in m                decay="decoupled":  m without lam·p,  p ← p − lr·lam·p − …
    paper: m and v as they are       bias_correction=True:  m / (1 − b1^t) and v / (1 − b2^t) wherever they are used
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal, NamedTuple

from layerwise.options import fields
from layerwise.options.checks import number, one_of, pair
from layerwise.options.fields import flag, option
from layerwise.options.settings import ClippedByNorm, OneNumberPerLayer, Scheduled
from layerwise.options.values import Scalar, is_one, is_zero
from layerwise.rules.arrays import add, add_unless_off, length, shrinking
from layerwise.rules.clipping import prepare_gradient
from layerwise.rules.requests import Array, Asking, Coefficients, Functions, Now, PerLayer, Shape, Squares, Stepped
from layerwise.rules.scalars import choose, named, once_a_step, one_like, one_minus_power, product, root, vanishes


@dataclass(frozen=True)
class NovoGrad(OneNumberPerLayer, ClippedByNorm):
    """Options of NovoGrad. Its page in the documentation gives each its place in the formula."""

    lr: Scheduled = fields.lr(1e-3)
    betas: tuple[float, float] = option(
        (0.95, 0.98),
        pair(number(0, 1), number(0, 1)),
        "Decay rates of the momentum m and of the squared norm v.",
        "Pass two numbers such as betas=(0.95, 0.98).",
        optax_default=(0.9, 0.25),
    )
    eps: float = fields.eps(1e-8, "Added to the root of v, which the gradient is divided by.", optax_default=1e-6)
    weight_decay: Scheduled = fields.weight_decay()
    _: KW_ONLY
    eps_root: float = fields.eps_root()
    grad_averaging: bool = flag(False, "Multiply what enters m by 1 - b1.")
    normalize: Literal["gradient", "momentum"] = option(
        "gradient",
        one_of("gradient", "momentum"),
        'Divide the gradient by the root of v before it enters m ("gradient"), or divide m ("momentum").',
        'Pass "gradient" as in the paper, or "momentum" to divide the average.',
    )
    decay: Literal["momentum", "decoupled"] = option(
        "momentum",
        one_of("momentum", "decoupled"),
        'Apply weight_decay to the momentum ("momentum"), or to the weights directly ("decoupled").',
        'Pass "momentum" as in the paper, or "decoupled" as in AdamW.',
    )
    bias_correction: bool = flag(False, "Correct m and v as if both had started at 0.")
    v_start: Literal["first", "zero", "nonzero"] = option(
        "first",
        one_of("first", "zero", "nonzero"),
        'Start v from the first squared norm ("first"), from 0 ("zero"), or from the first that is not 0 ("nonzero").',
        'Pass "first" as in the paper, "zero", or "nonzero" for the first norm that is not 0.',
    )
    m_start: Literal["zero", "direction"] = option(
        "zero",
        one_of("zero", "direction"),
        'Start m from 0 ("zero"), or from the first direction at full weight ("direction").',
        'Pass "zero" as in the paper, or "direction".',
    )


class State(NamedTuple):
    exp_avg: Array  # m
    exp_avg_sq: PerLayer  # v


def shapes(h: NovoGrad, shape: Shape) -> State:
    return State(exp_avg=shape, exp_avg_sq=h.layer_shape(shape))


@once_a_step
def coefficients(xp: Functions, h: NovoGrad, now: Now) -> Coefficients:
    (b1, b2), lam, one = h.betas, now.weight_decay, one_like(xp, now.t)
    c1, c2 = one_minus_power(xp, b1, now.t), one_minus_power(xp, b2, now.t)
    decoupled = h.decay == "decoupled"
    a1 = 1 - b1 if h.grad_averaging else 1.0
    return named(
        b2=b2,  # v ← b2·v + a2·‖g‖²
        a2=choose(xp, now.t == 1, one, (1 - b2) * one) if h.v_start == "first" else 1 - b2,
        reseeds=1.0 if h.v_start == "nonzero" else 0.0,  # v = ‖g‖² where v is 0, unless this is 0
        c2=1 / c2 if h.bias_correction else 1.0,  # d = √(c2·v + eps_root) + eps
        eps_root=h.eps_root,
        eps=h.eps,
        # either g/d enters m, or g does and m/d moves the weights (if this is 0)
        inside=1.0 if h.normalize == "gradient" else 0.0,
        b1=b1,  # m ← b1·m + a1·(… + lam·p)
        a1=choose(xp, now.t == 1, one, a1 * one) if h.m_start == "direction" else a1,
        lam=0.0 if decoupled else lam,
        lr=now.lr / c1 if h.bias_correction else now.lr,  # p ← p − shrink·p − lr·m
        shrink=product(now.lr, lam) if decoupled else 0.0,
    )


def step(xp: Functions, p: Array, g: Array, state: State, h: NovoGrad, now: Now) -> Asking[Stepped]:
    k, (m, v) = coefficients(xp, h, now), state
    g = yield from prepare_gradient(xp, g, h, now)
    (gg,) = yield (Squares(g),)
    norm = length(xp, gg, g)
    v = _averaged(xp, v, norm * norm, k)
    d = root(xp, k.c2 * v + k.eps_root) + k.eps

    inside = k.inside == 1
    u = choose(xp, inside, k.a1 / d, k.a1) * g
    u = add_unless_off(xp, u, k.a1 * k.lam, p)
    m = add(xp, u, k.b1, m)
    moves = *shrinking(xp, k.shrink, p), (-k.lr * choose(xp, inside, 1.0, 1 / d), m)
    return Stepped(moves, State(m, v), {"gradient_norm": norm, "average_norm": root(xp, v), "trust_ratio": 1.0})


def _averaged(xp: Functions, v: Array, squares: Scalar, k: Coefficients) -> Array:
    """Return the average of ‖g‖²; if requested, it starts with ‖g‖² while v is 0."""
    new = k.b2 * v + k.a2 * squares
    if is_zero(k.reseeds):
        return new
    none = vanishes(xp, v)
    return choose(xp, none if is_one(k.reseeds) else (k.reseeds != 0) & none, squares, new)
