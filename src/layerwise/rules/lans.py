"""LANS (Zheng et al., arXiv 2006.13484): LAMB with normalized gradients and Nesterov's momentum in the direction.

    ĝ = g / ‖g‖,  and 0 where ‖g‖ is 0
    m ← b1·m + (1 − b1)·ĝ
    v ← b2·v + (1 − b2)·ĝ²
    d = √(v / (1 − b2^t) + eps_root) + eps
    r = (m / (1 − b1^t)) / d + lam·p
    c = ĝ / d + lam·p
    p ← p − lr·(b1·(‖p‖ / ‖r‖)·r + (1 − b1)·(‖p‖ / ‖c‖)·c),  with zero_norm_ratio for a ratio with a norm of 0

g is the gradient made ready: parts.py's `ready` unscales it, turns it round and clips its elements, if asked to.
Clipping by norm would change nothing, and is no option.

Departures, each an option:

    paper: ratios ‖p‖/‖r‖, ‖p‖/‖c‖   trust_clip, max_weight_norm:  clip(min(‖p‖, φmax)/‖·‖, low, high)
                                     min_norm:  max(‖·‖, min_norm) instead of each norm
    paper: the ratios everywhere     adapt=False:  both are 1;   "decayed":  both are 1 where lam = 0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple

from layerwise.checks import NONE, number
from layerwise.errors import ContradictionError, sentence
from layerwise.hyper import Scheduled, TrustRatio, betas_option, lr_option, option, weight_decay_option
from layerwise.rules.asks import Array, Asking, Keep, Now, Scalar, Shape, Squares, Stepped
from layerwise.rules.parts import (
    add,
    at_most,
    between,
    choose,
    final,
    floored,
    is_zero,
    length,
    mix,
    one_minus_power,
    ready,
    square,
    trusted,
)


@dataclass(frozen=True)
class Lans(TrustRatio):
    """Options of LANS; docs/optimizers/lans.md gives each its place in the formula."""

    optax_state: ClassVar[Mapping[str, str]] = {"exp_avg": "mu", "exp_avg_sq": "nu"}

    lr: Scheduled = lr_option(1e-3)
    betas: tuple[float, float] = betas_option()
    eps: float = option(
        1e-6, number(0), "Added to the denominator of both directions.", "Pass a small number such as eps=1e-6."
    )
    weight_decay: Scheduled = weight_decay_option()
    _: KW_ONLY
    eps_root: float = option(
        0.0, number(0), "Added inside the root of the denominator.", "Pass a small number such as eps_root=1e-12, or 0."
    )
    max_weight_norm: float | None = option(
        None,
        number(0, above=True) | NONE,
        "The norm of the weights counts as at most this in the trust ratios; None is no bound.",
        "Pass a bound such as 10, or None.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_weight_norm is not None and self.min_norm > self.max_weight_norm:
            allowed = f"at most max_weight_norm={self.max_weight_norm}"
            raise ContradictionError(sentence("min_norm", allowed, self.min_norm, "Lower one of them."))


class State(NamedTuple):
    exp_avg: Array  # m
    exp_avg_sq: Array  # v


def shapes(h: Any, shape: Shape) -> State:
    return State(exp_avg=shape, exp_avg_sq=shape)


def step(xp: Any, p: Array, g: Array, state: State, h: Any, now: Now) -> Asking[Stepped]:
    (m, v), (b1, b2) = state, h.betas
    t, lr, lam = now.t, now.lr, now.weight_decay
    g = yield from _normalized(xp, ready(xp, g, h, now))
    m, v = final(xp, mix(xp, b1, m, g), mix(xp, b2, v, square(g)))

    v_hat = v / one_minus_power(xp, b2, t)
    d = xp.sqrt(v_hat if is_zero(h.eps_root) else v_hat + h.eps_root) + h.eps
    r, c = m / (one_minus_power(xp, b1, t) * d), g / d
    if not is_zero(lam):
        r, c = add(xp, r, lam, p), add(xp, c, lam, p)
    del g, v_hat, d  # what waits for the sums is p, r and c
    m, v = yield Keep(State(m, v))

    (ratio_r, ratio_c), stats = yield from _ratios(xp, p, r, c, lam, h)
    return Stepped(((-lr * b1 * ratio_r, r), (-lr * (1 - b1) * ratio_c, c)), State(m, v), stats)


def _normalized(xp: Any, g: Array) -> Asking[Array]:
    """Return g / ‖g‖; a gradient of zeros stays one."""
    (gg,) = yield (Squares(g),)
    norm = length(xp, gg, g)
    return g / choose(xp, norm == 0, 1.0, norm)


def _ratios(
    xp: Any, p: Array, r: Array, c: Array, lam: Scalar, h: Any
) -> Asking[tuple[tuple[Scalar, Scalar], dict[str, Array]]]:
    """Return ‖p‖/‖r‖ and ‖p‖/‖c‖, within the bounds that were asked for."""
    if h.adapt is False:
        return (1.0, 1.0), {"trust_ratio": 1.0}
    pp, rr, cc = yield Squares(p), Squares(r), Squares(c)
    norm_p, norm_r, norm_c = length(xp, pp, p), length(xp, rr, r), length(xp, cc, c)
    w = floored(xp, norm_p, h)
    phi = w if h.max_weight_norm is None else at_most(xp, w, h.max_weight_norm)
    ratio_r, ratio_c = (_ratio(xp, phi, floored(xp, norm, h), lam, h) for norm in (norm_r, norm_c))
    return (ratio_r, ratio_c), {"weight_norm": norm_p, "update_norm": norm_r, "trust_ratio": ratio_r}


def _ratio(xp: Any, phi: Scalar, x: Scalar, lam: Scalar, h: Any) -> Scalar:
    # The inner choice keeps 0/0 out of the branch not taken, and so out of its derivative.
    ratio = between(xp, phi / choose(xp, x == 0, 1.0, x), h.trust_clip)
    return trusted(xp, ratio, (phi != 0) & (x != 0), lam, h)
