"""LAMB (You et al., arXiv 1904.00962): Adam's direction, given the length lr·‖p‖ in every tensor.

    m ← b1·m + (1 − b1)·g
    v ← b2·v + (1 − b2)·g²
    u = (m / (1 − b1^t)) / (√(v / (1 − b2^t) + eps_root) + eps)
    r = u + lam·p
    p ← p − lr·ratio·r,   ratio = ‖p‖ / ‖r‖,  and zero_norm_ratio where a norm is 0

g is the gradient made ready: parts.py's `ready` and `clipped` unscale it, turn it round and clip it, if asked to.

Departures, each an option:

    paper: ratio = ‖p‖/‖r‖           trust_clip, max_weight_norm, trust_eps:
                                         ratio = clip(min(‖p‖, φmax)/(‖r‖ + trust_eps), low, high)
                                     min_norm:  max(‖p‖, min_norm) and max(‖r‖, min_norm) instead of both norms
    paper: no L2                     l2:  g ← g + l2·p, besides lam
    paper: r = u + lam·p             decay="decoupled":  p ← p − lr·lam·p first, r = u;   "l2":  g ← g + lam·p, r = u
    paper: the ratio everywhere      adapt=False:  ratio = 1;   "decayed":  ratio = 1 where lam = 0
    paper: m ← b1·m + (1 − b1)·g     grad_averaging=False:  m ← b1·m + g
    paper: corrected m and v         bias_correction=False:  neither;   "lr":  lr·√(1 − b2^t)/(1 − b1^t) instead of lr
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from layerwise.checks import NONE, number, one_of
from layerwise.errors import ContradictionError, sentence
from layerwise.hyper import (
    ClippedByNorm,
    L2Penalty,
    Scheduled,
    TrustRatio,
    betas_option,
    flag,
    lr_option,
    option,
    warn_of_swap,
    weight_decay_option,
)
from layerwise.rules.asks import Array, Asking, Keep, Moves, Now, Scalar, Shape, Squares, Stepped
from layerwise.rules.parts import (
    add,
    at_most,
    between,
    choose,
    clipped,
    final,
    floored,
    is_zero,
    length,
    mix,
    move,
    one_minus_power,
    ready,
    square,
    trusted,
)


@dataclass(frozen=True)
class Lamb(TrustRatio, L2Penalty, ClippedByNorm):
    """Options of LAMB; docs/optimizers/lamb.md gives each its place in the formula."""

    optax_state: ClassVar[Mapping[str, str]] = {"exp_avg": "mu", "exp_avg_sq": "nu"}

    lr: Scheduled = lr_option(1e-3)
    betas: tuple[float, float] = betas_option()
    eps: float = option(
        1e-6,
        number(0),
        "Added to the denominator of the direction, outside the root.",
        "Pass a small number such as eps=1e-6.",
    )
    weight_decay: Scheduled = weight_decay_option()
    _: KW_ONLY
    eps_root: float = option(
        0.0, number(0), "Added inside the root of the denominator.", "Pass a small number such as eps_root=1e-12, or 0."
    )
    bias_correction: bool | Literal["lr"] = option(
        True,
        one_of(True, False, "lr"),
        'Correct m and v for their start at 0 inside the direction (True), not at all (False), or on the step ("lr").',
        'Pass True, False, or "lr" to correct the step instead of the direction.',
    )
    decay: Literal["ratio", "decoupled", "l2"] = option(
        "ratio",
        one_of("ratio", "decoupled", "l2"),
        'Where weight_decay enters: the update that the ratio measures ("ratio"), the weights first ("decoupled"), '
        'or the gradient ("l2").',
        'Pass "ratio" for decay inside the trust ratio, "decoupled" as in AdamW, or "l2" for the gradient.',
    )
    max_weight_norm: float | None = option(
        None,
        number(0, above=True) | NONE,
        "The norm of the weights counts as at most this in the trust ratio; None is no bound.",
        "Pass a bound such as 10, or None.",
    )
    grad_averaging: bool = flag(True, "Weigh the gradient by 1 - b1 as it enters m.")
    trust_eps: float = option(
        0.0,
        number(0),
        "Added to the denominator of the trust ratio.",
        "Pass a small number such as trust_eps=1e-8, or 0.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        b1, b2 = self.betas
        if b1 >= 0.995 and b2 <= 0.9:  # (0.99, 0.9) is used
            warn_of_swap("b1", "b2", self.betas)
        if self.max_weight_norm is not None and self.min_norm > self.max_weight_norm:
            raise ContradictionError(
                sentence(
                    "min_norm", f"at most max_weight_norm={self.max_weight_norm}", self.min_norm, "Lower one of them."
                )
            )


class State(NamedTuple):
    exp_avg: Array  # m
    exp_avg_sq: Array  # v


def shapes(h: Any, shape: Shape) -> State:
    return State(exp_avg=shape, exp_avg_sq=shape)


def step(xp: Any, p: Array, g: Array, state: State, h: Any, now: Now) -> Asking[Stepped]:
    (m, v), (b1, b2) = state, h.betas
    t, lr, lam = now.t, now.lr, now.weight_decay
    moves: Moves = ()
    g = yield from clipped(xp, ready(xp, g, h, now), h)
    l2 = h.l2 + lam if h.decay == "l2" else h.l2
    if not is_zero(l2):
        g = add(xp, g, l2, p)
    if h.decay == "decoupled" and not is_zero(lam):
        moves, p = ((-lr * lam, p),), add(xp, p, -lr * lam, p)

    m = mix(xp, b1, m, g) if h.grad_averaging else add(xp, g, b1, m)
    v = mix(xp, b2, v, square(g))
    m, v = final(xp, m, v)

    c1, c2 = one_minus_power(xp, b1, t), one_minus_power(xp, b2, t)
    u = _direction(xp, m, v, c1, c2, h)
    r = move(xp, u, lam, p) if h.decay == "ratio" and not is_zero(lam) else u
    del g, u  # what waits for the sums is p and r
    m, v = yield Keep(State(m, v))

    ratio, stats = yield from _ratio(xp, p, r, lam, h)
    if h.bias_correction == "lr":
        lr = lr * (c2**0.5 / c1)
    return Stepped((*moves, (-lr * ratio, r)), State(m, v), stats)


def _direction(xp: Any, m: Array, v: Array, c1: Scalar, c2: Scalar, h: Any) -> Array:
    """Return (m / c1) / (√(v / c2 + eps_root) + eps), the correction of m drawn below: one division less."""
    corrected = h.bias_correction is True
    v_hat = v / c2 if corrected else v
    root_v = xp.sqrt(v_hat if is_zero(h.eps_root) else v_hat + h.eps_root)
    return m / (add(xp, c1 * h.eps, c1, root_v) if corrected else root_v + h.eps)


def _ratio(xp: Any, p: Array, r: Array, lam: Any, h: Any) -> Asking[tuple[Array, dict[str, Array]]]:
    """Return ‖p‖ / ‖r‖, within the requested bounds."""
    if h.adapt is False:
        return 1.0, {"trust_ratio": 1.0}
    pp, rr = yield Squares(p), Squares(r)
    norm_p, norm_r = length(xp, pp, p), length(xp, rr, r)
    w, x = floored(xp, norm_p, h), floored(xp, norm_r, h)
    phi = w if h.max_weight_norm is None else at_most(xp, w, h.max_weight_norm)
    # The inner choice keeps 0/0 out of the branch not taken, and so out of its derivative.
    d = choose(xp, x == 0, 1.0, x)
    ratio = between(xp, phi / (d if is_zero(h.trust_eps) else d + h.trust_eps), h.trust_clip)
    ratio = trusted(xp, ratio, (w != 0) & (x != 0), lam, h)
    return ratio, {"weight_norm": norm_p, "update_norm": norm_r, "trust_ratio": ratio}
