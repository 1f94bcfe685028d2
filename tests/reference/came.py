"""CAME: Luo et al., "CAME: Confidence-guided Adaptive Memory Efficient Optimization", arXiv 2307.02047, algorithm 2."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from layerwise.rules import adafactor
from layerwise.rules import came as rule

from .adafactor import average, counted, factored_dims, is_counted_to_a_bound, mean_over, without
from .case import Case
from .paths import close, data, path
from .stepper import Stepper
from .tensors import indices, rms


class Came(Stepper):
    """p ← p − lr·lam·p − lr·m / √S,  S the factored average of (û − m)², û and m being Adafactor's"""

    def __init__(
        self,
        lr=2e-4,
        betas=(0.9, 0.999),
        beta3=0.9999,
        eps=(1e-30, 1e-16),
        weight_decay=0,
        clip_threshold=1.0,
        decay_scale="lr",
        factored="last",
        min_dim_size_to_factor=0,
        max_grad_norm=None,
        max_grad_norm_per_tensor=None,
        max_grad_value=None,
        maximize=False,
        blocks=None,
    ):
        super().__init__(lr, weight_decay, blocks, max_grad_norm, max_grad_norm_per_tensor, max_grad_value, maximize)
        self.b1, self.b2 = betas
        self.b3 = beta3
        self.eps1, self.eps2 = eps
        self.clip_threshold = clip_threshold
        self.decay_scale = decay_scale
        self.factored = factored
        self.min_dim_size_to_factor = min_dim_size_to_factor

    def update(self, state, p, g, t, lr, lam, lr_scale):
        """One step of one tensor."""
        lr, g = lr * lr_scale, counted(g)
        dims = factored_dims(g.shape, self.factored, self.min_dim_size_to_factor)
        squares = np.empty(g.shape)
        for i in indices(g):
            squares[i] = g[i] * g[i] + self.eps1
        v = averaged(state, "V", squares, self.b2, dims)
        u = np.empty(g.shape)
        for i in indices(g):
            u[i] = g[i] / math.sqrt(v[i])
        update_rms = rms(u)
        # Python's max keeps its first argument where that is NaN, and a NaN must not get lost.
        divisor = 1.0 if self.clip_threshold is None else max(update_rms / self.clip_threshold, 1.0)
        m = state.setdefault("m", np.zeros(g.shape))
        distances = np.empty(g.shape)
        for i in indices(g):
            m[i] = self.b1 * m[i] + (1 - self.b1) * u[i] / divisor
            distances[i] = (u[i] / divisor - m[i]) ** 2 + self.eps2
        s = np.ones(g.shape) if dims is None else averaged(state, "S", distances, self.b3, dims)
        w = (lr if self.decay_scale == "lr" else 1.0) * lam
        new_p = np.empty(p.shape)
        for i in indices(p):
            new_p[i] = p[i] - w * p[i] - lr * m[i] / math.sqrt(s[i])
        return new_p, {"update_rms": update_rms, "trust_ratio": 1 / divisor}


def averaged(state, name, new, beta, dims):
    """The average of `new` so far: kept whole, or as R·C / mean(R over the rows)."""
    if dims is None:
        average(state.setdefault(name, np.zeros(new.shape)), new, beta)
        return state[name]
    rows, columns = dims
    over_columns, over_rows = mean_over(new, columns), mean_over(new, rows)
    r = state.setdefault(f"{name} by rows", np.zeros(over_columns.shape))
    c = state.setdefault(f"{name} by columns", np.zeros(over_rows.shape))
    average(r, over_columns, beta)
    average(c, over_rows, beta)
    mean_r, v = mean_over(r, rows), np.empty(new.shape)
    for i in indices(v):
        v[i] = r[without(i, columns)] * c[without(i, rows)] / mean_r[without(i, rows + columns)]
    return v


# ---- what else tests know of it


OPTIONS = {
    "lr": (0.1, 0.01),
    "betas": ((0.9, 0.999), (0.0, 0.5), (0.5, 0.0)),
    "beta3": (0.9999, 0.5, 0.0),
    "eps": ((1e-30, 1e-16), (1e-3, 0.1)),
    "weight_decay": (0.0, 0.1),
    "clip_threshold": (1.0, None, 0.5),
    "decay_scale": ("lr", "none"),
    "factored": ("last", "largest", "matrix", False, (0, 1), (-1, 0), ((0,), (1, 2))),
    "min_dim_size_to_factor": (0, 4),
}


EXPECTED = (
    [[0.915778370497, 1.885426411106, 2.87180308068], [3.866043018872, 4.885129796674, 6.091752313783]],
    [[0.757515390248, 1.852121523332, 2.716267518979], [3.757443568173, 4.685925523829, 6.126682264108]],
)


def _vectors(world: Any) -> None:
    """Numbers of came_pytorch 0.1.3."""
    p = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    gs = [[np.array([[0.1, 0.2, 0.3], [0.4, 0.5, -0.6]])], [np.array([[0.3, -0.1, 0.2], [0.1, 0.4, 0.2]])]]
    steps = path(world, rule.Came(0.01, weight_decay=0.1), [p], gs)
    close([one for [one] in steps], EXPECTED, 1e-11)


def _properties(world: Any) -> None:
    draw = np.random.default_rng(7)
    for shape in ((6, 5), (7,), (2, 3, 4)):
        p, g = draw.normal(size=shape), draw.normal(size=shape)
        once, scaled = (path(world, rule.Came(0.01), [p], [[k * g], [k * g * g]]) for k in (1.0, 1e3))
        close(once[1], scaled[1], 1e-12)  # a gradient's length does not matter
        is_counted_to_a_bound(world, rule.Came(0.01), p, g)
    # Where the gradient never changes its size, û is ±1, m runs after it, and S is the average of their distances.
    g = np.sign(draw.normal(size=(4, 3)))
    m, s = 0.0, 0.0
    steps = path(world, rule.Came(0.01, eps=(1e-30, 1e-30), clip_threshold=1.0), [np.zeros((4, 3))], [[g]] * 3)
    expected = np.zeros((4, 3))
    for [one] in steps:
        m = 0.9 * m + 0.1
        s = 0.9999 * s + 0.0001 * (1 - m) ** 2
        expected = expected - 0.01 * m / np.sqrt(s) * g
        close([one], [expected], 1e-11)


def _limits(world: Any) -> None:
    """With nothing between û and m it trusts everything, and is Adafactor with a fixed decay rate."""
    params, grads = data(3)
    settings = rule.Came(0.1, (0.0, 0.9), 0.0, (1e-30, 1.0), 0.2)
    known = adafactor.Adafactor(0.1, beta2=0.9, scale_parameter=False, relative_step=False, weight_decay=0.2)
    close(path(world, settings, params, grads)[-1], path(world, known, params, grads)[-1], 1e-12)


CASE = Case(
    reference=Came,
    options=OPTIONS,
    busy={"lr": 0.1, "weight_decay": 0.01},
    vectors=_vectors,
    properties=_properties,
    limits=_limits,
    measured={"betas": (0.0, 0.999), "beta3": 0.0, "eps": (1e-30, 1.0)},
    whole={"factored": False},
    fixed=("factored", "min_dim_size_to_factor"),
    smooth={"eps": (1e-8, 1e-8)},
    learns_at=0.005,
    shows_with={"decay_scale": {"weight_decay": 0.1}},
)
