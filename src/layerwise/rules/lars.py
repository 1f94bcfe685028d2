"""LARS (You, Gitman, Ginsburg, arXiv 1708.03888): momentum SGD with a rate of its own in every tensor.

    r = g + lam·p
    ratio = eta·‖p‖ / (‖g‖ + lam·‖p‖ + eps),  and zero_norm_ratio where ‖p‖ or ‖g‖ is 0
    u = lr·ratio·r
    b ← mu·b + u
    p ← p − b

g is the gradient made ready: parts.py's `ready` turns it round, unscales and clips it, if asked to.

Departures, each an option:

    paper: ‖g‖ + lam·‖p‖             norm="decayed":  ‖g + lam·p‖
    paper: no floors                 min_norm:  max(‖p‖, min_norm) and max(‖g‖, min_norm) instead of both norms
    paper: no L2                     l2:  g ← g + l2·p, besides lam
    paper: lr inside b               lr_in_momentum=False:  u = ratio·r,  p ← p − lr·b
    paper: b ← mu·b + u              dampening:  b ← mu·b + (1 − dampening)·u from the second step on
    paper: p ← p − b                 nesterov:  p ← p − (u + mu·b)
    paper: the ratio everywhere      adapt=False:  ratio = 1;   "decayed":  ratio = 1 where lam = 0
    paper: no bounds                 trust_clip:  ratio ← clip(ratio/lr, low, high);  (0, 1) is LARC's min(ratio, lr)
"""

from __future__ import annotations

from typing import Any, NamedTuple

from layerwise.rules.asks import Array, Asking, Now, Scalar, Shape, Squares, Stepped
from layerwise.rules.parts import add, between, choose, floored, is_zero, length, ready, trusted


class State(NamedTuple):
    momentum_buffer: Array  # b; None without momentum


def shapes(h: Any, shape: Shape) -> State:
    return State(momentum_buffer=None if is_zero(h.momentum) else shape)


def step(xp: Any, p: Array, g: Array, state: State, h: Any, now: Now) -> Asking[Stepped]:
    (b,), mu = state, h.momentum
    t, lr, lam = now.t, now.lr, now.weight_decay
    g = yield from ready(xp, g, h, now)
    if not is_zero(h.l2):
        g = add(xp, g, h.l2, p)
    r = g if is_zero(lam) else add(xp, g, lam, p)

    ratio, stats = yield from _ratio(xp, p, g, r, lr, lam, h)
    u = (lr * ratio if h.lr_in_momentum else ratio) * r
    b = u if b is None else add(xp, _damped(xp, u, t, h), mu, b)
    moved = add(xp, u, mu, b) if h.nesterov else b
    kept = None if state.momentum_buffer is None else b
    return Stepped(((-1.0 if h.lr_in_momentum else -lr, moved),), State(kept), stats)


def _damped(xp: Any, u: Array, t: Scalar, h: Any) -> Array:
    # Chosen between arrays, not between factors: two numbers would take a dtype of their own on the way.
    return u if is_zero(h.dampening) else choose(xp, t == 1, u, (1 - h.dampening) * u)


def _ratio(
    xp: Any, p: Array, g: Array, r: Array, lr: Scalar, lam: Scalar, h: Any
) -> Asking[tuple[Array, dict[str, Array]]]:
    """eta·‖p‖ over the length it is measured against, within the bounds that were asked for."""
    if h.adapt is False:
        return 1.0, {"trust_ratio": 1.0}
    split, eta = h.norm == "split", h.trust_coefficient
    measured = g if split else r
    pp, xx = yield Squares(p), Squares(measured)
    norm_p, x = length(xp, pp, p), length(xp, xx, measured)
    w, f = floored(xp, norm_p, h), floored(xp, x, h)
    d = (f + lam * w if split else f) + h.eps
    # The inner choice keeps x/0 out of the branch not taken, and so out of its derivative.
    ratio = eta * w / choose(xp, f == 0, 1.0, d)
    if h.trust_clip is not None and not is_zero(lr):
        ratio = between(xp, ratio / lr, h.trust_clip)
    ratio = trusted(xp, ratio, (w != 0) & (f != 0), lam, h)
    return ratio, {"weight_norm": norm_p, "update_norm": x, "trust_ratio": ratio}
