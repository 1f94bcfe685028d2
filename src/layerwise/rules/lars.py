"""LARS (You, Gitman, Ginsburg, arXiv 1708.03888): momentum SGD with a learning rate for each tensor.

    r = g + lam·p
    ratio = eta·‖p‖ / (‖g‖ + lam·‖p‖ + eps),  and zero_norm_ratio where ‖p‖ or ‖g‖ is 0
    u = lr·ratio·r
    b ← mu·b + u
    p ← p − b

Departures, each an option:

    paper: ‖g‖ + lam·‖p‖             norm="decayed":  ‖g + lam·p‖
    paper: no floors                 min_norm:  max(‖p‖, min_norm) and max(‖g‖, min_norm) instead of both norms
    paper: no L2                     l2:  g ← g + l2·p, besides lam
    paper: lr inside b               lr_in_momentum=False:  u = ratio·r,  p ← p − lr·b
    paper: b ← mu·b + u              dampening:  b ← mu·b + (1 − dampening)·u from the second step on
    paper: p ← p − b                 nesterov:  p ← p − (u + mu·b)
    paper: the norm may change       keep_norm:  p ← R·(p − b) / ‖p − b‖,  R = ‖p‖ before this step;
                                     "first":  R = ‖p‖ before the first step
                                     radial:  b ← b − (1 − radial)·(⟨p, b⟩ / ‖p‖²)·p as p moves by it
    paper: all of the step           caution:  b ← b·[b·g > 0] / max(share of these elements, 1e-3) as p moves by it
    paper: the ratio everywhere      adapt=False:  ratio = 1;   "decayed":  ratio = 1 where lam = 0
    paper: the ratio of u alone      adapt="step":  ratio = 1 in u, and p ← p − lr·eta·(‖p‖ / (‖b‖ + eps))·b; where ‖p‖
                                     or ‖b‖ is 0,  p ← p − zero_norm_ratio·b,  with lr as above
    paper: no bounds                 trust_clip:  ratio ← clip(ratio/lr, low, high);  (0, 1) is LARC's min(ratio, lr)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from math import inf
from typing import ClassVar, Literal, NamedTuple

from layerwise.options import fields
from layerwise.options.checks import NONE, Contradiction, number, one_of, pair
from layerwise.options.fields import OFF, flag, option
from layerwise.options.settings import Adapt, Caution, ClippedByNorm, HeavyBall, L2Penalty, Scheduled, StepLength
from layerwise.options.values import is_one, is_zero
from layerwise.rules.arrays import add, add_unless_off, length, scaled, unless_off
from layerwise.rules.clipping import cautious, prepare_gradient
from layerwise.rules.requests import Array, Asking, Coefficients, Functions, Now, PerLayer, Shape, Squares, Stepped
from layerwise.rules.scalars import choose, dampening_factor, exists, named, once_a_step, vanishes
from layerwise.rules.trust import Length, SplitRatio, bounded_ratio, norm_at_least, scaled_moves, trust_coefficients


@dataclass(frozen=True)
class Lars(HeavyBall, StepLength, L2Penalty, Caution, ClippedByNorm):
    """Options of LARS. Its page in the documentation gives each its place in the formula."""

    large_without_ratio: ClassVar[float] = 1.0
    of_small: ClassVar[Mapping[str, float]] = {"min_norm": 0.1}

    lr: Scheduled = fields.lr(
        1.0,
        "Learning rate; at 1 a tensor moves by trust_coefficient of its norm.",
    )
    momentum: float = fields.momentum(0.9)
    weight_decay: Scheduled = fields.weight_decay()
    trust_coefficient: float = option(
        1e-3,
        number(0, above=True),
        "The factor on the trust ratio (η in the paper).",
        "Pass a number such as trust_coefficient=0.001.",
    )
    _: KW_ONLY
    adapt: Adapt | Literal["step"] = option(  # type: ignore[assignment]  # one more than others have
        True,
        one_of(True, False, "decayed", "step"),
        'Use the trust ratio for all tensors (True), for none (False), or where weight_decay is not 0 ("decayed"); '
        '"step" makes the whole step, momentum and all, exactly lr·trust_coefficient·‖p‖ long.',
        'Pass True, False, "decayed" to adapt only where weight_decay is not 0, or "step" for the whole step.',
    )
    eps: float = fields.eps(0.0, "Added to the denominator of the trust ratio.")
    nesterov: bool = fields.nesterov()
    dampening: float = fields.dampening()
    norm: Literal["split", "decayed"] = option(
        "split",
        one_of("split", "decayed"),
        'Divide ‖p‖ by ‖g‖ + λ‖p‖ ("split", the paper) or by ‖g + λp‖ ("decayed").',
        'Pass "split" for ‖g‖ + λ‖p‖ (the paper) or "decayed" for ‖g + λp‖.',
        optax_default="decayed",
    )
    # Without an upper bound, at lr = 0, ratio/lr would be infinite and lr·ratio nan.
    trust_clip: tuple[float | None, float] | None = option(
        None,
        NONE | pair(OFF, number(0), ordered=True),
        "Bounds (low, high) of the trust ratio divided by lr; None as low is no lower bound.",
        "Pass (low, high) with low ≤ high, None as low for no lower bound, or None for no clipping.",
    )
    lr_in_momentum: bool = flag(True, "Multiply by lr inside the momentum buffer (the paper), not outside.")

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        whole = self.adapt == "step"
        yield whole and self.trust_clip is not None, "trust_clip", 'None with adapt="step"', "Drop one of them."
        yield whole and self.norm != "split", "norm", '"split" with adapt="step"', "Drop one: the ratio measures ‖b‖."

    @property
    def step_per_lr(self) -> float | None:
        return self.trust_coefficient if self.adapt == "step" else None

    @property
    def has_kernels(self) -> bool:
        return super().has_kernels and not (self.caution or self.keep_norm) and self.adapt != "step"


class State(NamedTuple):
    momentum_buffer: Array  # b; None without momentum
    norm: PerLayer = None  # R; None unless keep_norm="first"


def shapes(h: Lars, shape: Shape) -> State:
    return State(momentum_buffer=None if is_zero(h.momentum) else shape, norm=h.shape_of_norm(shape))


@once_a_step
def coefficients(xp: Functions, h: Lars, now: Now) -> Coefficients:
    lr, lam, trust = now.lr, now.weight_decay, trust_coefficients(xp, h, now.weight_decay)
    split, clips = h.norm == "split", h.trust_clip is not None and not is_zero(lr)
    return named(
        l2=h.l2,  # g ← g + l2·p
        lam=lam,  # r = g + lam·p
        lam_x=0.0 if split else lam,  # x = g + lam_x·p is measured,
        lam_w=lam if split else 0.0,  # and ratio = eta·‖p‖ / (‖x‖ + lam_w·‖p‖ + eps)
        eta=h.trust_coefficient,
        eps=h.eps,
        unit=lr if clips else 1.0,  # the trust ratio that is clipped is ratio/unit
        lr=lr if h.lr_in_momentum else 1.0,  # u = lr·ratio·r
        damped=dampening_factor(xp, now.t, h.dampening),  # b ← mu·b + damped·u
        mu=h.momentum,
        pace=1.0 if h.lr_in_momentum else lr,  # p ← p − pace·b
        # b ← whole·(‖p‖ / (‖b‖ + eps))·b as it moves p, with adapt="step"; the lr inside b cancels
        whole=h.trust_coefficient * (lr if h.lr_in_momentum else 1.0),
        trust=trust if clips else trust._replace(low=-inf, high=inf),
    )


def step(xp: Functions, p: Array, g: Array, state: State, h: Lars, now: Now) -> Asking[Stepped]:
    k, (b, R) = coefficients(xp, h, now), state
    g = yield from prepare_gradient(xp, g, h, now)
    g = add_unless_off(xp, g, k.l2, p)
    r = add_unless_off(xp, g, k.lam, p)

    ratio, stats = yield from _ratio(xp, p, g, r, k, h)
    u = k.lr * ratio.factor * scaled(ratio.unit, r)
    b = u if b is None else add(xp, u if is_one(k.damped) else k.damped * u, k.mu, b)
    moved = add(xp, u, k.mu, b) if h.nesterov else b
    moved, agreeing = yield from cautious(xp, moved, g, h)
    how_long = Length(k.pace, k.trust, eps=k.eps, scale=k.whole) if h.adapt == "step" else Length(k.pace)
    R, moves, found = yield from scaled_moves(xp, h, how_long, R, p, moved)
    return Stepped(moves, State(None if state.momentum_buffer is None else b, R), {**(stats or found), **agreeing})


def _ratio(
    xp: Functions, p: Array, g: Array, r: Array, k: Coefficients, h: Lars
) -> Asking[tuple[SplitRatio, dict[str, Array]]]:
    """Return eta·‖p‖ over the length that it is compared with, within the requested bounds."""
    if h.adapt is False or h.adapt == "step":
        return SplitRatio(1.0, 1.0), {}
    # If x is measured with the same decay, r is already x.
    x = r if k.lam_x is k.lam else add_unless_off(xp, g, k.lam_x, p)
    pp, xx = yield Squares(p), Squares(x)
    norm_p, norm_x = length(xp, pp, p), length(xp, xx, x)
    w, f = (norm_at_least(xp, norm, k.trust.min_norm) for norm in (norm_p, norm_x))
    d = (f if is_zero(k.lam_w) else f + k.lam_w * unless_off(xp, k.lam_w, w)) + k.eps
    # The choice keeps x/0 out of the branch that is not taken, and so out of its derivative.
    d = choose(xp, vanishes(xp, f), 1.0, d)
    ratio = bounded_ratio(xp, k.eta * w, d, exists(xp, w) & exists(xp, f), k.trust, k.unit)
    return ratio, {"weight_norm": norm_p, "update_norm": norm_x, "trust_ratio": ratio.value}
