"""Fromage (Bernstein et al., arXiv 2002.03432): a step as long as lr·‖p‖, and then all weights a little smaller.

    b ← mu·b + g                      with momentum;  else b = g
    p ← (p − lr·ratio·b) / √(1 + lr²),   ratio = ‖p‖ / ‖b‖,  and 1 where a norm is 0

The division cancels the length that a step perpendicular to p adds to its norm.

Departures, each an option:

    paper: no momentum               momentum:  mu > 0
    paper: no decay                  weight_decay:  p ← (p − lr·lam·p − lr·ratio·b) / √(1 + lr²)
    authors' code: no floor          min_norm:  max(‖p‖, min_norm) and max(‖b‖, min_norm) instead of both norms
    authors' code: no bound          p_bound:  p ← p·min(1, p_bound·R / ‖p‖) in the end,  R = ‖p‖ before the first step
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from math import inf
from typing import ClassVar, NamedTuple

from layerwise.options import fields
from layerwise.options.checks import NONE, number
from layerwise.options.fields import option
from layerwise.options.settings import ClippedByNorm, OneNumberPerLayer, Scheduled
from layerwise.options.values import Scalar, is_zero
from layerwise.rules.arrays import add, after_moves, final, length, scaled, shrinking
from layerwise.rules.clipping import prepare_gradient
from layerwise.rules.requests import (
    Array,
    Asking,
    Coefficients,
    Functions,
    Keep,
    Moves,
    Now,
    PerLayer,
    Shape,
    Squares,
    Stepped,
)
from layerwise.rules.scalars import choose, named, once_a_step, one_like
from layerwise.rules.trust import TrustCoefficients, first_norm, norm_at_least, trust_ratio


@dataclass(frozen=True)
class Fromage(OneNumberPerLayer, ClippedByNorm):
    """Options of Fromage. Its page in the documentation gives each its place in the formula."""

    optax_state: ClassVar[Mapping[str, str]] = {}

    lr: Scheduled = fields.lr(0.01)
    momentum: float = fields.momentum(0.0)
    weight_decay: Scheduled = fields.weight_decay()
    _: KW_ONLY
    p_bound: float | None = option(
        None,
        number(0, above=True) | NONE,
        "Scale the weights down after a step if their norm exceeds this times their first norm; None is no bound.",
        "Pass a number such as p_bound=2, or None for no bound.",
    )

    min_norm: float = option(
        0.0,
        number(0),
        "Lower bound of both norms in the ratio.",
        "Pass a lower bound such as 1e-6, or 0 for none.",
        optax_default=1e-6,
    )

    def fit(self, shape: Shape, block_dims: Shape, machine_eps: float) -> Fromage:
        return self if self.p_bound is None else super().fit(shape, block_dims, machine_eps)


UNBOUNDED = TrustCoefficients(min_norm=0.0, low=-inf, high=inf, undefined=1.0, adapts=1.0)


class State(NamedTuple):
    momentum_buffer: Array  # b; None without momentum
    norm: PerLayer = None  # R; None without p_bound


def shapes(h: Fromage, shape: Shape) -> State:
    return State(
        momentum_buffer=None if is_zero(h.momentum) else shape,
        norm=None if h.p_bound is None else h.layer_shape(shape),
    )


@once_a_step
def coefficients(xp: Functions, h: Fromage, now: Now) -> Coefficients:
    lr = now.lr
    root = (1 + lr * lr) ** 0.5
    return named(
        mu=h.momentum,  # b ← mu·b + g
        # p ← p − shrink·p − size·ratio·b. The first term is 1 − 1/root, in all digits.
        shrink=lr * lr / (root * (1 + root)) + lr * now.weight_decay / root,
        size=lr / root,
        least=h.min_norm,  # of both norms in the ratio
        bound=inf if h.p_bound is None else h.p_bound,  # ‖p‖ ≤ bound·R
    )


def step(xp: Functions, p: Array, g: Array, state: State, h: Fromage, now: Now) -> Asking[Stepped]:
    k, (b, R) = coefficients(xp, h, now), state
    g = yield from prepare_gradient(xp, g, h, now)
    if b is not None:
        (g,) = final(xp, add(xp, g, k.mu, b))
        b, _ = yield Keep(State(g, R))
    pp, gg = yield Squares(p), Squares(g)
    norm_p, norm_g = length(xp, pp, p), length(xp, gg, g)
    ratio = trust_ratio(xp, norm_at_least(xp, norm_p, k.least), norm_at_least(xp, norm_g, k.least), UNBOUNDED)
    moves = (*shrinking(xp, k.shrink, p), (-k.size * ratio.factor, scaled(ratio.unit, g)))
    if h.p_bound is not None:
        R = first_norm(xp, R, norm_p)
        moves = yield from _bounded(xp, p, moves, k.bound * R)
    return Stepped(moves, State(b, R), {"weight_norm": norm_p, "update_norm": norm_g, "trust_ratio": ratio.value})


def _bounded(xp: Functions, p: Array, moves: Moves, most: Scalar) -> Asking[Moves]:
    """Return moves that bring the weights' norm down to at most this."""
    q = after_moves(xp, p, moves)
    (qq,) = yield (Squares(q),)
    one = one_like(xp, most)  # choosing between an array and a number would create a dtype of its own
    norm = one * length(xp, qq, q)
    above = norm > most
    shrink = choose(xp, above, (most - norm) / choose(xp, above, norm, one), 0 * one)
    return (*moves, (shrink, q))
