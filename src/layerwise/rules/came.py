"""CAME (Luo et al., arXiv 2307.02047): Adafactor with momentum, scaled by its confidence in each element.

    G  = g² + eps1                           (of g within ±2^50)
    R ← b2·R + (1 − b2)·mean(G over columns)
    C ← b2·C + (1 − b2)·mean(G over rows)
    V  = R·C / mean(R)
    u  = g / √V
    û  = u / max(1, RMS(u)/d)
    m ← b1·m + (1 − b1)·û
    D  = (û − m)² + eps2
    R' ← b3·R' + (1 − b3)·mean(D over columns)
    C' ← b3·C' + (1 − b3)·mean(D over rows)
    S  = R'·C' / mean(R')
    p ← p − lr·lam·p − lr·m/√S

A tensor that is not factored keeps V ← b2·V + (1 − b2)·G itself, and moves by m: S = 1. R, C, V and S are
factors.py's.

Departures, each an option:

    paper: matrices are factored     factored:  any two dimensions, or groups of them, of a tensor of any rank; or none
    paper: d = 1                     clip_threshold=None:  û = u
    paper: no decay                  weight_decay:  p ← p − w·lam·p,  w = lr or 1 by decay_scale
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from layerwise.options import fields
from layerwise.options.checks import number, pair
from layerwise.options.fields import option
from layerwise.options.settings import ClippedByNorm, Scheduled
from layerwise.rules.arrays import final, length, mix, shrinking, square
from layerwise.rules.clipping import clip_of, prepare_gradient
from layerwise.rules.factors import (
    AverageCoefficients,
    factored_option,
    factored_update,
    fit_factored,
    means,
    min_dim_option,
    moment_shapes,
    updated_factors,
)
from layerwise.rules.requests import Array, Asking, Coefficients, Functions, Nonnegative, Now, Shape, Statistic, Stepped
from layerwise.rules.scalars import named, once_a_step, product

EPS = number(0, above=True)  # with 0, a gradient that is zero from the start would give 0/0


@dataclass(frozen=True)
class Came(ClippedByNorm):
    """Options of CAME. Its page in the documentation gives each its place in the formula."""

    optax_state: ClassVar[Mapping[str, str]] = {}

    lr: Scheduled = fields.lr(2e-4)
    betas: tuple[float, float] = fields.betas()
    beta3: float = option(
        0.9999,
        number(0, 1),
        "Decay rate of the instability, which measures the confidence.",
        "Pass a number such as beta3=0.9999.",
    )
    eps: tuple[float, float] = option(
        (1e-30, 1e-16),
        pair(EPS, EPS),
        "Pair (eps1, eps2): eps1 is added to the squared gradient, eps2 to the squared distance between û and m.",
        "Pass eps=(eps1, eps2) such as (1e-30, 1e-16).",
    )
    weight_decay: Scheduled = fields.weight_decay()
    _: KW_ONLY
    clip_threshold: float | None = fields.clip_threshold()
    decay_scale: Literal["lr", "none"] = fields.decay_scale("lr", "none")
    factored: Any = factored_option()
    min_dim_size_to_factor: int = min_dim_option()

    def fit(self, shape: Shape, block_dims: Shape, machine_eps: float) -> Came:
        return fit_factored(self, shape, block_dims)


class State(NamedTuple):
    exp_avg_sq_row: Statistic  # R, with size 1 along the columns; None where not factored
    exp_avg_sq_col: Statistic  # C, with size 1 along the rows; None where not factored
    exp_avg_sq: Nonnegative  # V; None where factored
    exp_avg: Array  # m
    exp_avg_res_row: Statistic  # R'; None where not factored
    exp_avg_res_col: Statistic  # C'; None where not factored


def shapes(h: Came, shape: Shape) -> State:
    row, col, whole = moment_shapes(h.factored, shape)
    return State(row, col, whole, shape, row, col)


@once_a_step
def coefficients(xp: Functions, h: Came, now: Now) -> Coefficients:
    (b1, b2), b3, (eps1, eps2) = h.betas, h.beta3, h.eps
    return named(
        b1=b1,  # m ← b1·m + a1·û
        a1=1 - b1,
        V=AverageCoefficients(b2, 1 - b2, eps1, 0.0),
        S=AverageCoefficients(b3, 1 - b3, eps2, 0.0),
        lr=now.lr,  # p ← p − lam·p − lr·m/√S
        lam=product(now.lr if h.decay_scale == "lr" else 1.0, now.weight_decay),
    )


def step(xp: Functions, p: Array, g: Array, state: State, h: Came, now: Now) -> Asking[Stepped]:
    k = coefficients(xp, h, now)
    g = yield from prepare_gradient(xp, g, h, now)
    measured = factored_update(xp, g, state[:3], h.factored, k.V)
    del g  # while the sums are computed, only p and u are kept
    moment, u, uu, _ = yield from measured
    rms, clip = length(xp, uu, u), 1.0
    if h.clip_threshold is not None:
        clip = clip_of(xp, rms, h.clip_threshold)
        u = clip * u
    (m,) = final(xp, mix(xp, k.b1, state.exp_avg, k.a1, u))
    R_, C_, r = state.exp_avg_res_row, state.exp_avg_res_col, m
    if h.factored:
        answers = yield means(xp, square(u - m), R_, *h.factored)
        R_, C_, root_S = updated_factors(xp, R_, C_, answers, k.S)
        r = m / root_S
    moves = *shrinking(xp, k.lam, p), (-k.lr, r)
    return Stepped(moves, State(*moment, m, R_, C_), {"update_rms": rms, "trust_ratio": clip})
