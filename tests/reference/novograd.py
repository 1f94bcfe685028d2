"""NovoGrad: Ginsburg et al., "Stochastic Gradient Methods with Layer-wise Adaptive Moments", arXiv 1905.11286."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from layerwise.rules import novograd as rule

from .case import Case
from .paths import close, data, path, torch_steps
from .stepper import Stepper
from .tensors import divide, indices, sum_of_squares


class NovoGrad(Stepper):
    """m ← b1·m + g/√v + lam·p,  p ← p − lr·m,  v being an average of ‖g‖²"""

    def __init__(
        self,
        lr=1e-3,
        betas=(0.95, 0.98),
        eps=1e-8,
        weight_decay=0,
        eps_root=0,
        grad_averaging=False,
        normalize="gradient",
        decay="momentum",
        bias_correction=False,
        v_start="first",
        m_start="zero",
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
        self.grad_averaging = grad_averaging
        self.normalize = normalize
        self.decay = decay
        self.bias_correction = bias_correction
        self.v_start = v_start
        self.m_start = m_start

    def update(self, state, p, g, t, lr, lam, lr_scale):
        """One step of one tensor."""
        lr = lr * lr_scale
        size = self.size(state, sum_of_squares(g), t)
        directions = np.empty(p.shape)
        for i in indices(p):
            directions[i] = divide(g[i], size) if self.normalize == "gradient" else g[i]
            directions[i] += lam * p[i] if self.decay == "momentum" else 0.0
        if "m" not in state:
            state["m"] = np.zeros(p.shape)
        new_p = np.empty(p.shape)
        for i in indices(p):
            weight = 1 - self.b1 if self.grad_averaging and (t > 1 or self.m_start == "zero") else 1
            state["m"][i] = self.b1 * state["m"][i] + weight * directions[i]
            m = state["m"][i] / (1 - self.b1**t) if self.bias_correction else state["m"][i]
            step = lr * m if self.normalize == "gradient" else divide(lr * m, size)
            new_p[i] = p[i] - step - (lr * lam * p[i] if self.decay == "decoupled" else 0.0)
        return new_p, {"average_norm": math.sqrt(state["v"]), "trust_ratio": 1.0}

    def size(self, state, squares, t):
        """√v + eps, after this step's squares have entered v"""
        before = state.get("v", 0.0)
        if (self.v_start == "first" and t == 1) or (self.v_start == "nonzero" and before == 0):
            state["v"] = squares
        else:
            state["v"] = self.b2 * before + (1 - self.b2) * squares
        v = state["v"] / (1 - self.b2**t) if self.bias_correction else state["v"]
        return math.sqrt(v + self.eps_root) + self.eps


# ---- what else tests know of it


OPTIONS = {
    "lr": (0.1, 0.01),
    "betas": ((0.95, 0.98), (0.0, 0.5), (0.9, 0.25)),
    "eps": (1e-8, 1e-2),
    "weight_decay": (0.0, 0.1),
    "eps_root": (0.0, 1e-3),
    "grad_averaging": (False, True),
    "normalize": ("gradient", "momentum"),
    "decay": ("momentum", "decoupled"),
    "bias_correction": (False, True),
    "v_start": ("first", "zero", "nonzero"),
    "m_start": ("zero", "direction"),
}


# By NumPy, each line of the algorithm a line of code, for b1 = 0.9 and b2 = 0.5.
EXPECTED = (
    [[0.973273876523, 1.946547753046, 2.919821629569], [1.029398735825, 1.871714607311, 2.794208849227]],
    [[0.963273876523, 1.926547753046, 2.889821629569], [1.000765997059, 1.814449129780, 2.708310632932]],
)


def _vectors(world: Any) -> None:
    """Two steps of the algorithm by hand, for whole arrays."""
    p, gs = np.array([1.0, 2.0, 3.0]), (np.array([0.1, 0.2, 0.3]), np.array([-0.3, 0.1, 0.2]))
    for lam, expected in ((0.0, EXPECTED[0]), (0.1, EXPECTED[1])):
        steps = path(world, rule.NovoGrad(lr=0.1, betas=(0.9, 0.5), weight_decay=lam), [p], [[g] for g in gs])
        close([one for [one] in steps], expected, 1e-11, lam)


def _properties(world: Any) -> None:
    draw = np.random.default_rng(7)
    for shape in ((6, 5), (7,), (2, 3, 4)):
        p, g = draw.normal(size=shape), draw.normal(size=shape)
        settings = rule.NovoGrad(lr=0.05, eps=0.0)
        once, scaled = (path(world, settings, [p], [[k * g], [k * g - k]]) for k in (1.0, 1e3))
        close(once[1], scaled[1], 1e-13)  # a gradient's unit does not matter
        np.testing.assert_allclose(np.linalg.norm(once[0][0] - p), 0.05, rtol=1e-12)  # the first step has length lr


def _limits(world: Any) -> None:
    """With b2 = 0 it is SGD with momentum of gradients of length 1."""
    settings = rule.NovoGrad(0.1, (0.9, 0.0), 0.0, weight_decay=0.2)
    params, grads = data(3)
    params, grads = params[:2], [gs[:2] for gs in grads]
    grads = [[g if g.any() else g + 1.0 for g in gs] for gs in grads]
    unit = [[g / np.linalg.norm(g) for g in gs] for gs in grads]
    theirs = torch_steps(torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.2}, params, unit)
    close(path(world, settings, params, grads)[-1], theirs, 1e-13)


CASE = Case(
    reference=NovoGrad,
    options=OPTIONS,
    busy={"lr": 0.1, "weight_decay": 0.01, "betas": (0.9, 0.98), "eps": 1e-6},  # optax has other defaults
    vectors=_vectors,
    properties=_properties,
    limits=_limits,
    smooth={"eps_root": 1e-8},
    shows_with={
        "decay": {"weight_decay": 0.1},
        "m_start": {"grad_averaging": True},
        ("v_start", "nonzero"): {"max_grad_value": (None, 0.0)},  # so that a first gradient is 0
    },
)
