"""SGD with momentum (Polyak 1964; Sutskever et al., ICML 2013), without a trust ratio.

    g ← g + lam·p
    b ← mu·b + g
    p ← p − lr·b

Departures, each an option:

    lam on the gradient              decay="decoupled":  p ← p − lr·lam·p instead (SGDW, arXiv 1711.05101)
    b ← mu·b + g                     dampening:  b ← mu·b + (1 − dampening)·g from the second step on
    p ← p − lr·b                     nesterov:  p ← p − lr·(g + mu·b)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple

from layerwise.options import fields
from layerwise.options.checks import Contradiction, one_of
from layerwise.options.fields import option
from layerwise.options.settings import ClippedByNorm, HeavyBall, Scheduled, StoredMomentum
from layerwise.options.values import is_one, is_zero
from layerwise.rules.arrays import add, add_unless_off, shrinking
from layerwise.rules.clipping import prepare_gradient
from layerwise.rules.requests import Array, Asking, Coefficients, Functions, Now, Shape, Stepped
from layerwise.rules.scalars import dampening_factor, named, once_a_step, product


@dataclass(frozen=True)
class SGD(HeavyBall, StoredMomentum, ClippedByNorm):
    """Options of SGD. Its page in the documentation gives each its place in the formula."""

    lr: Scheduled = fields.lr(1e-3)
    momentum: float = fields.momentum(0.0)
    dampening: float = fields.dampening()
    weight_decay: Scheduled = fields.weight_decay()
    _: KW_ONLY
    nesterov: bool = fields.nesterov()
    decay: Literal["l2", "decoupled"] = option(
        "l2",
        one_of("l2", "decoupled"),
        'Apply weight_decay to the gradient ("l2"), or to the weights, times lr ("decoupled").',
        'Pass "l2" as in torch.optim.SGD or "decoupled" as in AdamW.',
    )
    momentum_dtype: Any = fields.momentum_dtype()

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        stored = self.momentum_dtype is not None and is_zero(self.momentum)
        yield stored, "momentum_dtype", "None without momentum", "Pass momentum, such as 0.9."

    @property
    def reads_weights(self) -> bool:
        return False


class State(NamedTuple):
    momentum_buffer: Array  # b; None without momentum


def shapes(h: SGD, shape: Shape) -> State:
    return State(momentum_buffer=None if is_zero(h.momentum) else shape)


@once_a_step
def coefficients(xp: Functions, h: SGD, now: Now) -> Coefficients:
    lr, lam = now.lr, now.weight_decay
    return named(
        l2=lam if h.decay == "l2" else 0.0,  # g ← g + l2·p
        shrink=product(lr, lam) if h.decay == "decoupled" else 0.0,  # p ← p − shrink·p
        damped=dampening_factor(xp, now.t, h.dampening),  # b ← mu·b + damped·g
        mu=h.momentum,
        lr=lr,  # p ← p − lr·b
    )


def step(xp: Functions, p: Array, g: Array, state: State, h: SGD, now: Now) -> Asking[Stepped]:
    k, (b,) = coefficients(xp, h, now), state
    g = yield from prepare_gradient(xp, g, h, now)
    g = add_unless_off(xp, g, k.l2, p)
    if b is not None:
        b = add(xp, g if is_one(k.damped) else k.damped * g, k.mu, b)
    moved = g if b is None else add(xp, g, k.mu, b) if h.nesterov else b
    return Stepped((*shrinking(xp, k.shrink, p), (-k.lr, moved)), State(b), {"trust_ratio": 1.0})
