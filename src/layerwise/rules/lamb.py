"""LAMB (You et al., arXiv 1904.00962): Adam's direction, given the length lr·‖p‖ in every tensor.

    m ← b1·m + (1 − b1)·g
    v ← b2·v + (1 − b2)·g²
    u = (m / (1 − b1^t)) / (√(v / (1 − b2^t) + eps_root) + eps)
    r = u + lam·p
    p ← p − lr·ratio·r,   ratio = ‖p‖ / ‖r‖,  and zero_norm_ratio where a norm is 0

g is the gradient made ready: parts.py's `ready` turns it round, unscales and clips it, if asked to.

Departures, each an option:

    paper: ratio = ‖p‖/‖r‖           trust_clip, max_weight_norm:  ratio = clip(min(‖p‖, φmax)/‖r‖, low, high)
    paper: r = u + lam·p             decay="decoupled":  p ← p − lr·lam·p first, r = u;   "l2":  g ← g + lam·p, r = u
    paper: the ratio everywhere      adapt=False:  ratio = 1;   "decayed":  ratio = 1 where lam = 0
    paper: m ← b1·m + (1 − b1)·g     grad_averaging=False:  m ← b1·m + g
    paper: corrected m and v         bias_correction=False:  neither;   "lr":  lr·√(1 − b2^t)/(1 − b1^t) instead of lr
"""

from __future__ import annotations

from typing import Any, NamedTuple

from layerwise.rules.asks import Array, Asking, Now, Shape, Stepped, Sum
from layerwise.rules.parts import at_most, between, is_zero, one_minus_power, ready, root, square, trusted


class State(NamedTuple):
    exp_avg: Array  # m
    exp_avg_sq: Array  # v


def shapes(h: Any, shape: Shape) -> State:
    return State(exp_avg=shape, exp_avg_sq=shape)


def step(xp: Any, p: Array, g: Array, state: State, h: Any, now: Now) -> Asking[Stepped]:
    (m, v), (b1, b2) = state, h.betas
    t, lr, lam = now.t, now.lr, now.weight_decay
    g = yield from ready(xp, g, h, now)
    if h.decay == "l2" and not is_zero(lam):
        g = g + lam * p
    shrunk: tuple[Array, ...] = ()
    if h.decay == "decoupled" and not is_zero(lam):
        shrunk = ((lr * lam) * p,)
        p = p - shrunk[0]

    m = b1 * m + ((1 - b1) * g if h.grad_averaging else g)
    v = b2 * v + (1 - b2) * square(g)

    c1, c2 = one_minus_power(xp, b1, t), one_minus_power(xp, b2, t)
    m_hat, v_hat = (m / c1, v / c2) if h.bias_correction is True else (m, v)
    u = m_hat / (xp.sqrt(v_hat if is_zero(h.eps_root) else v_hat + h.eps_root) + h.eps)
    r = u + lam * p if h.decay == "ratio" and not is_zero(lam) else u

    ratio, stats = yield from _ratio(xp, p, r, lam, h)
    if h.bias_correction == "lr":
        lr = lr * (c2**0.5 / c1)
    moved = (lr * ratio) * r
    return Stepped(p - moved, State(m, v), stats, (*shrunk, moved))


def _ratio(xp: Any, p: Array, r: Array, lam: Any, h: Any) -> Asking[tuple[Array, dict[str, Array]]]:
    """‖p‖ / ‖r‖, within the bounds that were asked for."""
    if h.adapt is False:
        return 1.0, {"trust_ratio": 1.0}
    pp, rr = yield Sum(square(p)), Sum(square(r))
    norm_p, norm_r = root(xp, pp), root(xp, rr)
    phi = norm_p if h.max_weight_norm is None else at_most(xp, norm_p, h.max_weight_norm)
    # The inner where keeps 0/0 out of the branch not taken, and so out of its derivative.
    ratio = between(xp, phi / xp.where(rr == 0, 1.0, norm_r), h.trust_clip)
    ratio = trusted(xp, ratio, (pp != 0) & (rr != 0), lam, h)
    return ratio, {"weight_norm": norm_p, "update_norm": norm_r, "trust_ratio": ratio}
