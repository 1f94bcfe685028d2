"""SGD with momentum as torch.optim.SGD has it: its documentation, and for nesterov Sutskever et al., ICML 2013.

With decay="decoupled" it is SGDW (Loshchilov & Hutter, arXiv 1711.05101, algorithm 1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from layerwise.rules import sgd as rule

from .case import Case, Options
from .paths import close, data, path, torch_steps
from .stepper import Stepper
from .tensors import indices


class SGD(Stepper):
    """b ← mu·b + (1 − dampening)·(g + lam·p),  p ← p − lr·b"""

    def __init__(
        self,
        lr=1e-3,
        momentum=0,
        dampening=0,
        weight_decay=0,
        nesterov=False,
        decay="l2",
        momentum_dtype=None,
        max_grad_norm=None,
        max_grad_norm_per_tensor=None,
        max_grad_value=None,
        maximize=False,
        blocks=None,
    ):
        super().__init__(lr, weight_decay, blocks, max_grad_norm, max_grad_norm_per_tensor, max_grad_value, maximize)
        self.mu = momentum
        self.dampening = dampening
        self.nesterov = nesterov
        self.decay = decay

    def update(self, state, p, g, t, lr, lam, lr_scale):
        """One step of one tensor."""
        lr = lr * lr_scale
        if not state and self.mu != 0:
            state["b"] = np.zeros(p.shape)
        new_p = np.empty(p.shape)
        for i in indices(p):
            slope = g[i] + lam * p[i] if self.decay == "l2" else g[i]
            new_p[i] = p[i] - lr * self.velocity(state, i, slope, t)
            if self.decay == "decoupled":
                new_p[i] -= lr * lam * p[i]
        return new_p, {"trust_ratio": 1.0}

    def velocity(self, state, i, slope, t):
        """b, which the first gradient enters whole; with nesterov it looks one step ahead"""
        if self.mu == 0:
            return slope
        b = self.mu * state["b"][i] + (slope if t == 1 else (1 - self.dampening) * slope)
        state["b"][i] = b
        return slope + self.mu * b if self.nesterov else b


# ---- what else tests know of it


OPTIONS = {
    "lr": (0.1, 1.0),
    "momentum": (0.9, 0.0),
    "dampening": (0.0, 0.4),
    "weight_decay": (0.0, 0.1),
    "nesterov": (False, True),
    "decay": ("l2", "decoupled"),
    "momentum_dtype": (None,),  # how it is stored concerns a front, not the rule
}


def _consistent(options: Options) -> Options:
    if options["nesterov"]:
        return {**options, "momentum": options["momentum"] or 0.9, "dampening": 0.0}
    return options


def _vectors(world: Any) -> None:
    """Two steps by hand: b is g, then 0.5·g + 0.75·h or 0.5·g + h."""
    p, g, h = np.array([1.0, 2.0]), np.array([0.5, -1.0]), np.array([1.0, 4.0])
    for options, expected in (
        ({}, [[0.95, 2.1], [0.85, 1.7]]),
        ({"momentum": 0.5}, [[0.95, 2.1], [0.825, 1.75]]),
        ({"momentum": 0.5, "dampening": 0.25}, [[0.95, 2.1], [0.85, 1.85]]),
        ({"momentum": 0.5, "nesterov": True}, [[0.925, 2.15], [0.7625, 1.575]]),
        ({"momentum": 0.5, "weight_decay": 0.1}, [[0.94, 2.08], [0.8006, 1.6992]]),
        ({"weight_decay": 0.1, "decay": "decoupled"}, [[0.94, 2.08], [0.8306, 1.6592]]),
        ({"momentum": 0.5, "weight_decay": 0.1, "decay": "decoupled"}, [[0.94, 2.08], [0.8056, 1.7092]]),
    ):
        steps = path(world, rule.SGD(lr=0.1, **options), [p], [[g], [h]])
        close([one for [one] in steps], expected, 1e-14, options)


def _properties(world: Any) -> None:
    draw = np.random.default_rng(7)
    for shape in ((6, 5), (7,), (2, 3, 4)):
        p, g, h = (draw.normal(size=shape) for _ in range(3))
        # What it moves by is linear in the gradients, and a constant gradient is taken 1/(1 − mu) times in the end.
        pairs = (g, h), (h, g), (g + h, g + h)
        moved = [path(world, rule.SGD(0.1, 0.9), [p], [[x], [y]])[1][0] - p for x, y in pairs]
        np.testing.assert_allclose(moved[0] + moved[1], moved[2], rtol=0, atol=1e-13)
        *_, [before], [after] = path(world, rule.SGD(0.1, 0.5), [p], [[g]] * 60)
        np.testing.assert_allclose(before - after, 0.2 * g, rtol=0, atol=1e-13)


def _limits(world: Any) -> None:
    """It is PyTorch's."""
    sgd = torch.optim.SGD
    for settings, theirs in (
        (rule.SGD(0.1, 0.9, weight_decay=0.2), {"momentum": 0.9, "weight_decay": 0.2}),
        (rule.SGD(0.1, 0.9, nesterov=True), {"momentum": 0.9, "nesterov": True}),
        (rule.SGD(0.1, 0.9, 0.3), {"momentum": 0.9, "dampening": 0.3}),
        (rule.SGD(0.1, maximize=True), {"maximize": True}),
    ):
        params, grads = data(3)
        close(path(world, settings, params, grads)[-1], torch_steps(sgd, theirs, params, grads), 1e-13, settings)


CASE = Case(
    reference=SGD,
    options=OPTIONS,
    busy={"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "dampening": 0.1},
    vectors=_vectors,
    properties=_properties,
    limits=_limits,
    consistent=_consistent,
    fixed=("nesterov",),
    shows_with={"decay": {"weight_decay": 0.1}, "dampening": {"momentum": 0.9}},
)
