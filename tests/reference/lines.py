"""Rows and columns, divided by their own size."""

from __future__ import annotations

import math

import numpy as np

from .adafactor import factored_dims, without
from .stepper import Stepper
from .tensors import indices, rms


class ByLines(Stepper):
    """p ← p − lr·lam·p − lr·scale·x, x being `divided` of the gradient or of its average"""

    def __init__(
        self,
        lr,
        weight_decay,
        momentum,
        scale,
        eps,
        dims,
        max_grad_norm,
        max_grad_norm_per_tensor,
        max_grad_value,
        maximize,
        blocks,
    ):
        super().__init__(lr, weight_decay, blocks, max_grad_norm, max_grad_norm_per_tensor, max_grad_value, maximize)
        self.momentum = momentum
        self.scale = scale
        self.eps = eps
        self.dims = dims

    def rows_and_columns(self, shape):
        """The dimensions taken as rows and those taken as columns; None where there are none."""
        if self.dims == "first":
            return ((0,), tuple(range(1, len(shape)))) if len(shape) > 1 else None
        return factored_dims(shape, self.dims, 0)

    def update(self, state, p, g, t, lr, lam, lr_scale):
        """One step of one tensor."""
        lr = lr * lr_scale
        x = g
        if self.momentum:
            m = state.setdefault("m", np.zeros(g.shape))
            for i in indices(g):
                m[i] = self.momentum * m[i] + (1 - self.momentum) * g[i]
            x = m
        measured, x = rms(x), self.divided(x)
        new_p = np.empty(p.shape)
        for i in indices(p):
            new_p[i] = p[i] - lr * lam * p[i] - lr * self.scale * x[i]
        return new_p, {"update_rms": measured}

    def divided(self, x):
        raise NotImplementedError


def leveled(x, dims, eps, by_norm=False):
    """x with every line along `dims` divided by its root mean square, or its norm; with all of it for None."""
    if dims is None:
        dims = tuple(range(x.ndim))
    squares = {}
    for i in indices(x):
        squares.setdefault(without(i, dims), []).append(x[i] * x[i])
    out = np.empty(x.shape)
    for i in indices(x):
        line = squares[without(i, dims)]
        size = math.sqrt(math.fsum(line) / (1 if by_norm else len(line)))
        out[i] = x[i] / (eps if size < eps else size)
    return out


# What tests know of all rules by lines.
OPTIONS = {
    "lr": (0.1, 0.01),
    "weight_decay": (0.0, 0.1),
    "momentum": (0.0, 0.9),
    "scale": (1.0, 0.3),
    "eps": (1e-8, 1.0),
    "dims": ("first", "last", False, (0, 1), (-1, 0), ((0,), (1, 2))),
}
SHOWS_WITH = {name: {"momentum": 0.9} for name in ("max_grad_norm", "max_grad_norm_per_tensor")}
