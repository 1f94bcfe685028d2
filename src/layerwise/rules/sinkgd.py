"""SinkGD (Scetbon et al., arXiv 2502.06742): SGD with the gradient's rows and columns scaled to one size.

    m ← b·m + (1 − b)·g                      with momentum;  else m = g
    x = m
    x ← x / max(RMS(x along the columns), eps),  then  x ← x / max(RMS(x along the rows), eps),   so many times
    p ← p − lr·lam·p − lr·scale·x

A vector is divided by its own root mean square, once.

Departures, each an option:

    paper: no momentum               momentum
    paper: no decay                  weight_decay
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from layerwise.options import fields
from layerwise.options.checks import integer
from layerwise.options.fields import option
from layerwise.options.settings import Scheduled, with_values
from layerwise.rules import factored_dims
from layerwise.rules.clipping import prepare_gradient
from layerwise.rules.requests import Array, Asking, Functions, Now, Shape, Stepped
from layerwise.rules.row_normalization import (
    RowNormalization,
    State,
    coefficients,
    divided_by_rms,
    normalized_step,
    shapes,
    with_momentum,
)

__all__ = ["SinkGD", "State", "coefficients", "shapes", "step"]


@dataclass(frozen=True)
class SinkGD(RowNormalization):
    """Options of SinkGD. Its page in the documentation gives each its place in the formula."""

    lr: Scheduled = fields.lr(1e-3)
    weight_decay: Scheduled = fields.weight_decay()
    _: KW_ONLY
    iterations: int = option(
        5,
        integer(1, bits=31),
        "Number of times that rows, then columns, are divided by their own size.",
        "Pass a number of iterations such as iterations=5.",
    )

    def fit(self, shape: Shape, block_dims: Shape, machine_eps: float) -> SinkGD:
        found = factored_dims.dims(self.dims, shape, block_dims=block_dims)
        lines = ((),) if found is None else tuple(reversed(found)) * self.iterations
        return with_values(self, dims=lines)


def step(xp: Functions, p: Array, g: Array, state: State, h: SinkGD, now: Now) -> Asking[Stepped]:
    k = coefficients(xp, h, now)
    g = yield from prepare_gradient(xp, g, h, now)
    x, m = with_momentum(xp, g, state.exp_avg, k)
    del g
    first, *others = h.dims
    x, rms = yield from divided_by_rms(xp, x, first, k)
    for along in others:
        x, _ = yield from divided_by_rms(xp, x, along, k, measured=False)
    return normalized_step(xp, p, x, m, rms, k)
