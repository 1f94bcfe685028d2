"""LAMB: You et al., "Large Batch Optimization for Deep Learning", arXiv 1904.00962, algorithm 2."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from layerwise.rules import lamb as rule

from .case import Case, Options, floor_below_bound, one_hold_of_norm
from .paths import close, data, path, torch_steps
from .stepper import Stepper
from .tensors import agreeing, divide, indices, norm, stepped, trust_ratio


class Lamb(Stepper):
    """p ← p − lr·(‖p‖ / ‖r‖)·r,  r = m̂ / (√v̂ + eps) + lam·p"""

    def __init__(
        self,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=0,
        eps_root=0,
        bias_correction=True,
        decay="ratio",
        peak_lr=None,
        adapt=True,
        trust_clip=None,
        max_weight_norm=None,
        grad_averaging=True,
        zero_norm_ratio=1,
        min_norm=0,
        trust_eps=0,
        l2=0,
        caution=False,
        keep_norm=False,
        radial=None,
        max_grad_norm=None,
        max_grad_norm_per_tensor=None,
        max_grad_value=None,
        maximize=False,
        blocks=None,
    ):
        super().__init__(lr, weight_decay, blocks, max_grad_norm, max_grad_norm_per_tensor, max_grad_value, maximize)
        self.b1, self.b2 = betas
        self.eps = eps
        self.eps_root = eps_root
        self.bias_correction = bias_correction
        self.decay = decay
        self.adapt = adapt
        self.trust_clip = trust_clip
        self.max_weight_norm = max_weight_norm
        self.grad_averaging = grad_averaging
        self.zero_norm_ratio = zero_norm_ratio
        self.min_norm = min_norm
        self.trust_eps = trust_eps
        self.l2 = l2
        self.peak_lr = peak_lr
        self.caution = caution
        self.keep_norm = keep_norm
        self.radial = radial

    def update(self, state, p, g, t, lr, lam, lr_scale):
        """One step of one tensor."""
        lr = lr * lr_scale
        if "m" not in state:
            state["m"], state["v"] = np.zeros(p.shape), np.zeros(p.shape)
        g = self.with_decay(g, p, self.l2 + lam if self.decay == "l2" else self.l2)
        if self.decay == "decoupled":
            p = self.with_decay(p, p, -lr * lam if self.peak_lr is None else -(lr**2) / self.peak_lr * lam)
        self.average(state, g)
        r, found = self.adam_direction(state, t), {}
        if self.caution:
            r, found["agreeing"] = agreeing(r, g)
        if self.decay == "ratio":
            r = self.with_decay(r, p, lam)

        weight_norm, update_norm = norm(p), norm(r)
        ratio = trust_ratio(self, weight_norm, update_norm, lam, self.max_weight_norm, self.trust_eps)
        rate = lr * ratio
        if self.bias_correction == "lr":
            rate = rate * math.sqrt(1 - self.b2**t) / (1 - self.b1**t)
        new_p = stepped(state, p, r, rate, self.keep_norm, self.radial)
        return new_p, {**found, "weight_norm": weight_norm, "update_norm": update_norm, "trust_ratio": ratio}

    def with_decay(self, x, p, factor):
        """x + factor·p"""
        out = np.empty(x.shape)
        for i in indices(x):
            out[i] = x[i] + factor * p[i]
        return out

    def average(self, state, g):
        """m ← b1·m + (1 − b1)·g,  v ← b2·v + (1 − b2)·g²"""
        m, v = state["m"], state["v"]
        for i in indices(g):
            m[i] = self.b1 * m[i] + ((1 - self.b1) * g[i] if self.grad_averaging else g[i])
            v[i] = self.b2 * v[i] + (1 - self.b2) * g[i] * g[i]

    def adam_direction(self, state, t):
        """u = m̂ / (√(v̂ + eps_root) + eps)"""
        u = np.empty(state["m"].shape)
        for i in indices(u):
            m_hat, v_hat = state["m"][i], state["v"][i]
            if self.bias_correction is True:
                m_hat = m_hat / (1 - self.b1**t)
                v_hat = v_hat / (1 - self.b2**t)
            u[i] = divide(m_hat, math.sqrt(v_hat + self.eps_root) + self.eps)
        return u


# ---- what else tests know of it


OPTIONS = {
    "lr": (0.1, 0.01),
    "betas": ((0.9, 0.999), (0.0, 0.5), (0.5, 0.0)),
    "eps": (1e-6, 1e-2),
    "weight_decay": (0.0, 0.1),
    "eps_root": (0.0, 1e-3),
    "bias_correction": (True, False, "lr"),
    "decay": ("ratio", "decoupled", "l2"),
    "peak_lr": (None, 0.2),
    "max_weight_norm": (None, 0.5),
    "grad_averaging": (True, False),
    "trust_eps": (0.0, 0.5),
}


def _vectors(world: Any) -> None:
    """Numbers of optax (its docstring, and runs), timm and Paddle."""
    one = np.array([1.0, 2.0, 3.0])
    tenth = np.array([0.1, 0.2, 0.3])
    for options, g, expected in (
        ({}, tenth, [0.783976150143, 1.783975070029, 2.783974709989]),
        ({"weight_decay": 0.01}, tenth, [0.786100893123, 1.783982000314, 2.781863813436]),
        ({"eps_root": 1e-2}, tenth, [0.821623936805, 1.774369557706, 2.760682462847]),
        ({"adapt": "decayed"}, tenth, [0.900001, 1.9000005, 2.90000033]),
        ({"min_norm": 10.0}, tenth, [0.900001, 1.9000005, 2.90000033]),  # both norms are below: the ratio is 1
        ({"weight_decay": 0.01, "trust_clip": (None, 1)}, tenth, [0.899001, 1.8980005, 2.89700033]),
        ({"bias_correction": "lr", "eps": 1e-8}, tenth, [0.931687079, 1.931686971, 2.931686935]),
        ({"weight_decay": 0.5}, 0 * tenth, [0.9, 1.8, 2.7]),
    ):
        [[p]] = path(world, rule.Lamb(lr=0.1, **options), [one], [[g]])
        close([p], [expected], 2e-9, options)
    w, g = np.array([1.0, 2.0]), np.array([0.5, -1.0])
    [moved] = path(world, rule.Lamb(lr=0.1), [np.array([3.0, 4.0]), 0 * w], [[np.ones(2), g]])
    close(moved, [[2.646446609407, 3.646446609407], [-0.0999998, 0.0999999]], 1e-9)


def _properties(world: Any) -> None:
    draw = np.random.default_rng(7)
    for shape in ((6, 5), (7,), (2, 3, 4)):
        p, g = draw.normal(size=shape), draw.normal(size=shape)
        _moves_by_lr(world, p, g)


def _moves_by_lr(world: Any, p: Any, g: Any) -> None:
    for lam in (0.0, 0.3):
        before = p
        for [after] in path(world, rule.Lamb(lr=0.05, weight_decay=lam), [p], [[g], [2 * g], [g - 1]]):
            moved = np.linalg.norm(after - before) / np.linalg.norm(before)
            np.testing.assert_allclose(moved, 0.05, rtol=1e-12)
            before = after


def _limits(world: Any) -> None:
    """With the ratio off it is Adam or AdamW: PyTorch's own."""
    adamw, adam = torch.optim.AdamW, torch.optim.Adam
    for settings, theirs in (
        (rule.Lamb(0.1, adapt=False, decay="decoupled", weight_decay=0.2, eps=1e-8), (adamw, {"weight_decay": 0.2})),
        (
            rule.Lamb(0.1, (0.8, 0.9), adapt=False, weight_decay=0.2, eps=1e-8),
            (adamw, {"betas": (0.8, 0.9), "weight_decay": 0.2}),
        ),
        (rule.Lamb(0.1, adapt=False, decay="l2", weight_decay=0.2, eps=1e-8), (adam, {"weight_decay": 0.2})),
        (rule.Lamb(0.1, adapt=False, decay="l2", weight_decay=0.1, l2=0.1, eps=1e-8), (adam, {"weight_decay": 0.2})),
    ):
        params, grads = data(3)
        close(path(world, settings, params, grads)[-1], torch_steps(*theirs, params, grads), 1e-13, settings)


def _consistent(options: Options) -> Options:
    options = one_hold_of_norm(floor_below_bound(options))
    if options["peak_lr"] is not None:
        options = {**options, "decay": "decoupled"}
    return {**options, "keep_norm": False} if options["decay"] == "decoupled" else options


CASE = Case(
    reference=Lamb,
    options=OPTIONS,
    busy={"lr": 0.1, "weight_decay": 0.01},
    vectors=_vectors,
    properties=_properties,
    limits=_limits,
    consistent=_consistent,
    smooth={"eps_root": 1e-8},
    shows_with={"decay": {"weight_decay": 0.1}, "peak_lr": {"weight_decay": 0.1, "decay": "decoupled"}},
)
