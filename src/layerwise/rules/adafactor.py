"""Adafactor (Shazeer & Stern, arXiv 1804.04235): Adam's second moment from row and column means.

    b2 = 1 − t^beta2_decay
    G  = g² + eps1
    R ← b2·R + (1 − b2)·mean(G over columns)
    C ← b2·C + (1 − b2)·mean(G over rows)
    V  = R·C / mean(R)                       (a vector keeps V itself:  V ← b2·V + (1 − b2)·G)
    u  = g / √V
    û  = u / max(1, RMS(u)/d)
    p ← p − alpha·û,   alpha = rho·max(eps2, RMS(p)),   rho = min(lr_cap, 1/√t)

g is the gradient made ready: parts.py's `ready` turns it round, unscales and clips it, if asked to. RMS(p) is of the p
before the step and before its decay.

Departures, each an option:

    paper: matrices are factored     factored:  any two dimensions, or groups of them, of a tensor of any rank; or none
    paper: d = 1                     clip_threshold=None:  û = u
    paper: rho = min(1e-2, 1/√t)     lr:  rho = lr, and alpha = rho unless scale_parameter;   warmup_init:  and ≤ 1e-6·t
                                     relative_step="factor":  rho = lr·min(lr_cap, 1/√t);   "cap":  rho = min(lr, 1/√t)
    paper: G = g² + eps1, u = g/√V   eps_mode="clamp":  G = g²,  V = R·C/max(mean(R), eps1),  u = g/max(√V, eps1)
    paper: b2 → 1                    beta2_cap:  min(b2, cap);   decay_offset:  t − offset instead of t
    paper: b2 = 1 − t^beta2_decay    beta2:  what the user's function gives, which comes with `now`
    paper: no momentum               beta1:  e ← b1·e + (1 − b1)·alpha·û,  p ← p − e
                                     lr_in_momentum=False:  e ← b1·e + (1 − b1)·û,  p ← p − alpha·e
    paper: no decay                  weight_decay:  p ← p − w·lam·p − …,  w = lr, alpha or 1 by decay_scale

Mean(R) is wanted before the second round of sums, and costs no round of its own: mean(R) obeys the same recurrence as
R, so it is b2·mean(R before) + (1 − b2)·mean(G), and both of these can be asked for in the first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from layerwise.rules.asks import Array, Asking, Mean, MeanSquare, Now, Scalar, Shape, Stepped
from layerwise.rules.parts import add, at_least, at_most, final, is_zero, length, mix, ready, square


class State(NamedTuple):
    exp_avg_sq_row: Array  # R, with size 1 along the columns; None where not factored
    exp_avg_sq_col: Array  # C, with size 1 along the rows; None where not factored
    exp_avg_sq: Array  # V; None where factored
    exp_avg: Array  # e; None without momentum


def shapes(h: Any, shape: Shape) -> State:
    e = None if h.beta1 is None else shape
    if not h.factored:
        return State(None, None, shape, e)
    rows, cols = h.factored
    return State(_without(shape, cols), _without(shape, rows), None, e)


def _without(shape: Shape, dims: Shape) -> Shape:
    return tuple(1 if d in dims else n for d, n in enumerate(shape))


def step(xp: Any, p: Array, g: Array, state: State, h: Any, now: Now) -> Asking[Stepped]:
    b2 = _b2(xp, now, h)
    g = yield from ready(xp, g, h, now)
    (R, C, V), root_V, pp = yield from _second_moment(xp, p, g, state, b2, h)
    u = g / (at_least(xp, root_V, h.eps[0]) if h.eps_mode == "clamp" else root_V)
    del g, root_V  # what waits for the sum is p and u
    (uu,) = yield (MeanSquare(u),)
    rms = length(xp, uu, u)
    clip = 1.0 if h.clip_threshold is None else 1.0 / at_least(xp, rms / h.clip_threshold, 1.0)

    rms_p = length(xp, pp, p) if h.scale_parameter else None
    scale = at_least(xp, rms_p, h.eps[1]) if h.scale_parameter else 1.0
    alpha = _rho(xp, now, h) * scale
    size, moved, e = _averaged(xp, u, alpha, clip, state.exp_avg, h)
    decayed = _decay(now, alpha, h)
    moves = ((-size, moved),) if is_zero(decayed) else ((-decayed, p), (-size, moved))
    stats = {"update_rms": rms, "trust_ratio": scale * clip}
    if h.scale_parameter:
        stats["weight_rms"] = rms_p
    return Stepped(moves, State(R, C, V, e), stats)


def _second_moment(xp: Any, p: Array, g: Array, state: State, b2: Scalar, h: Any) -> Asking[Any]:
    """The new statistics, √V made of them, and mean(p²) if it is wanted: the first round of sums."""
    (R, C, V, _), gg, eps1 = state, square(g), h.eps[0] if h.eps_mode == "add" else 0.0
    wanted = (MeanSquare(p),) if h.scale_parameter else ()
    if not h.factored:
        pp = (yield wanted)[0] if wanted else None
        (V,) = final(xp, mix(xp, b2, V, _plus(gg, eps1)))
        return (None, None, V), xp.sqrt(V), pp

    rows, cols = h.factored
    per_row = xp.sum(gg, axis=cols, keepdims=True)
    G_rows, G_cols, G_mean, R_mean, *pp = yield (
        Mean(per_row, cols),
        Mean(gg, rows),
        Mean(per_row, rows + cols),
        Mean(R, rows),
        *wanted,
    )
    # mean(G) is mean(g²) + eps1, and so G itself need not be made.
    R, C = mix(xp, b2, R, _plus(G_rows, eps1)), mix(xp, b2, C, _plus(G_cols, eps1))
    R_mean = b2 * R_mean + (1 - b2) * _plus(G_mean, eps1)
    if h.eps_mode == "clamp":
        R_mean = at_least(xp, R_mean, h.eps[0])
    # Two roots, because R·C of gradients near eps1 would underflow in float32.
    return (R, C, None), xp.sqrt(R / R_mean) * xp.sqrt(C), pp[0] if pp else None


def _plus(x: Scalar, eps1: Scalar) -> Scalar:
    return x if is_zero(eps1) else x + eps1


def _b2(xp: Any, now: Now, h: Any) -> Scalar:
    b2 = _by_power(xp, now.t, h) if now.beta2 is None else now.beta2
    return b2 if h.beta2_cap is None else at_most(xp, b2, h.beta2_cap)


def _by_power(xp: Any, t: Scalar, h: Any) -> Scalar:
    t = t if is_zero(h.decay_offset) else at_least(xp, t - h.decay_offset, 1)
    return 1 - t**h.beta2_decay


def _rho(xp: Any, now: Now, h: Any) -> Scalar:
    if not h.relative_step:
        return now.lr
    factor, cap = _factor_and_cap(now, h)
    rho = at_most(xp, now.t**-0.5, cap)
    return factor * (at_most(xp, rho, 1e-6 * now.t) if h.warmup_init else rho)


def _factor_and_cap(now: Now, h: Any) -> tuple[Scalar, Scalar]:
    """What multiplies the relative step, and what bounds it; lr is one of them."""
    return (1.0, now.lr) if h.relative_step == "cap" else (now.lr, h.lr_cap)


def _averaged(xp: Any, u: Array, alpha: Scalar, clip: Scalar, e: Array, h: Any) -> tuple[Scalar, Array, Array]:
    """The step as a number times an array, and the momentum if there is one: of alpha·û, or of û."""
    if e is None:
        return alpha * clip, u, None
    e = add(xp, h.beta1 * e, (1 - h.beta1) * clip * (alpha if h.lr_in_momentum else 1.0), u)
    return (1.0 if h.lr_in_momentum else alpha), e, e


def _decay(now: Now, alpha: Scalar, h: Any) -> Scalar:
    """What p loses of itself, besides the step."""
    if is_zero(now.weight_decay):
        return 0.0
    factor, cap = _factor_and_cap(now, h) if h.relative_step else (now.lr, 1.0)
    return {"lr": factor * cap, "step": alpha, "none": 1.0}[h.decay_scale] * now.weight_decay
