"""SCALE (Glentis et al., arXiv 2506.16659): SGD with the gradient of each output scaled to one size.

    m ← b·m + (1 − b)·g                      with momentum, as for a model's last layer;  else m = g
    u = m / max(RMS(m along the columns), eps)
    p ← p − lr·lam·p − lr·u

Rows are outputs, and columns inputs, as in PyTorch's layers: each row of u has the root mean square 1. A vector is a
single row.

Departures, each an option:

    authors' code: by RMS            norm="l2":  u = m / max(‖m‖ along the columns, eps)
    authors' code: p ← p − lr·u      scale:  p ← p − lr·scale·u
    matrices of outputs by inputs    over="rows":  those of inputs by outputs, as in Flax;   dims:  of any rank
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import prod, sqrt
from typing import Literal

from layerwise.options import fields
from layerwise.options.checks import one_of
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

__all__ = ["ScaleSGD", "State", "coefficients", "shapes", "step"]


@dataclass(frozen=True)
class ScaleSGD(RowNormalization):
    """Options of SCALE. Its page in the documentation gives each its place in the formula."""

    lr: Scheduled = fields.lr(1e-3)
    weight_decay: Scheduled = fields.weight_decay()
    _: KW_ONLY
    over: Literal["columns", "rows"] = option(
        "columns",
        one_of("columns", "rows"),
        'Divide each row by its own size, measured over the columns ("columns"), or each column ("rows").',
        'Pass "columns" if rows are outputs, as in PyTorch, or "rows" if columns are.',
    )
    norm: Literal["rms", "l2"] = option(
        "rms",
        one_of("rms", "l2"),
        'The size of a line: its root mean square ("rms") or its norm ("l2").',
        'Pass "rms" or "l2".',
    )

    def fit(self, shape: Shape, block_dims: Shape, machine_eps: float) -> ScaleSGD:
        found = factored_dims.dims(self.dims, shape, block_dims=block_dims)
        along = tuple(d for d in range(len(shape)) if d not in block_dims)
        if found is not None:
            rows, cols = found
            along = cols if self.over == "columns" else rows
        unit = sqrt(prod(shape[d] for d in along)) if self.norm == "l2" else 1.0
        return with_values(self, dims=along if found else (), norm=unit)


def step(xp: Functions, p: Array, g: Array, state: State, h: ScaleSGD, now: Now) -> Asking[Stepped]:
    k = coefficients(xp, h, now)
    g = yield from prepare_gradient(xp, g, h, now)
    x, m = with_momentum(xp, g, state.exp_avg, k)
    del g
    x, rms = yield from divided_by_rms(xp, x, h.dims, k, h.norm)
    return normalized_step(xp, p, x, m, rms, k, h.norm)
