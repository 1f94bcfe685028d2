"""AdamW: Loshchilov & Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101, algorithm 2.

With decay="l2" it is Adam (arXiv 1412.6980, algorithm 1), and with nesterov NAdam (Dozat, "Incorporating Nesterov
Momentum into Adam", ICLR workshop 2016, algorithm 2 with a constant decay rate).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from layerwise.rules import adamw as rule

from .case import Case
from .paths import close, data, path, torch_steps
from .stepper import Stepper
from .tensors import divide, indices


class AdamW(Stepper):
    """p ← p − lr·lam·p − lr·m̂ / (√(v̂ + eps_root) + eps)"""

    def __init__(
        self,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0.01,
        eps_root=0,
        decay="decoupled",
        nesterov=False,
        momentum_dtype=None,
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
        self.decay = decay
        self.nesterov = nesterov

    def update(self, state, p, g, t, lr, lam, lr_scale):
        """One step of one tensor."""
        lr = lr * lr_scale
        if not state:
            state["m"], state["v"] = np.zeros(p.shape), np.zeros(p.shape)
        new_p = np.empty(p.shape)
        for i in indices(p):
            slope = g[i] + lam * p[i] if self.decay == "l2" else g[i]
            state["m"][i] = self.b1 * state["m"][i] + (1 - self.b1) * slope
            state["v"][i] = self.b2 * state["v"][i] + (1 - self.b2) * slope * slope
            m_hat = self.corrected_momentum(state["m"][i], slope, t)
            v_hat = state["v"][i] / (1 - self.b2**t)
            u = divide(m_hat, math.sqrt(v_hat + self.eps_root) + self.eps)
            new_p[i] = p[i] - lr * u - (lr * lam * p[i] if self.decay == "decoupled" else 0.0)
        return new_p, {"trust_ratio": 1.0}

    def corrected_momentum(self, m, g, t):
        """m̂, which with nesterov looks one step ahead"""
        if self.nesterov:
            return self.b1 * m / (1 - self.b1 ** (t + 1)) + (1 - self.b1) * g / (1 - self.b1**t)
        return m / (1 - self.b1**t)


# ---- what else tests know of it


OPTIONS = {
    "lr": (0.1, 0.01),
    "betas": ((0.9, 0.999), (0.0, 0.5), (0.5, 0.0)),
    "eps": (1e-8, 1e-2),
    "weight_decay": (0.01, 0.0, 0.1),
    "eps_root": (0.0, 1e-3),
    "decay": ("decoupled", "l2"),
    "nesterov": (False, True),
    "momentum_dtype": (None,),  # how it is stored concerns a front, not the rule
}

# Of torch.optim.AdamW and Adam, and of optax.adamw with nesterov, in float64.
VECTORS = (
    ({}, [[0.89900001, 1.898000005, 2.897000003333], [0.94751999111, 1.80288404701, 2.797067794327]]),
    (
        {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1},
        [[0.89099009901, 1.880497512438, 2.870332225914], [0.935390476559, 1.769453127672, 2.745146806063]],
    ),
    (
        {"decay": "l2", "weight_decay": 0.1},
        [[0.900000005, 1.9000000025, 2.900000001667], [0.907699802969, 1.802068000987, 2.801028877046]],
    ),
    (
        {"weight_decay": 0.0},
        [[0.90000001, 1.900000005, 2.900000003333], [0.94941899112, 1.806782047015, 2.80296479433]],
    ),
    (
        {"nesterov": True},
        [[0.851631593684, 1.850631586316, 2.84963158386], [0.952561701277, 1.756668639367, 2.744261515159]],
    ),
    (
        {"eps_root": 1e-2, "weight_decay": 0.1},
        [[0.919289326881, 1.8905572849, 2.875131673195], [0.955211089, 1.792871536395, 2.756046651723]],
    ),
)


def _vectors(world: Any) -> None:
    p, gs = np.array([1.0, 2.0, 3.0]), (np.array([0.1, 0.2, 0.3]), np.array([-0.3, 0.1, 0.2]))
    for options, expected in VECTORS:
        steps = path(world, rule.AdamW(lr=0.1, **options), [p], [[g] for g in gs])
        close([one for [one] in steps], expected, 1e-11, options)


def _properties(world: Any) -> None:
    draw = np.random.default_rng(7)
    for shape in ((6, 5), (7,), (2, 3, 4)):
        p, g = draw.normal(size=shape), draw.normal(size=shape)
        for nesterov, far in ((False, 0.05), (True, 0.05 * (0.9 / (1 + 0.9) + 1))):
            [[after], *_] = path(world, rule.AdamW(0.05, eps=0.0, weight_decay=0.0, nesterov=nesterov), [p], [[g]])
            np.testing.assert_allclose(after, p - far * np.sign(g), rtol=0, atol=1e-13)  # of its sign alone
        settings = rule.AdamW(0.05, eps=0.0, weight_decay=0.1)
        once, scaled = (path(world, settings, [p], [[k * g], [k * g - k]]) for k in (1.0, 1e3))
        close(once[1], scaled[1], 1e-13)


def _limits(world: Any) -> None:
    """It is PyTorch's AdamW and Adam."""
    adamw, adam = torch.optim.AdamW, torch.optim.Adam
    for settings, theirs in (
        (rule.AdamW(0.1, weight_decay=0.2), (adamw, {"weight_decay": 0.2})),
        (rule.AdamW(0.1, (0.8, 0.9), eps=1e-3), (adamw, {"betas": (0.8, 0.9), "eps": 1e-3})),
        (rule.AdamW(0.1, decay="l2", weight_decay=0.2), (adam, {"weight_decay": 0.2})),
    ):
        params, grads = data(3)
        close(path(world, settings, params, grads)[-1], torch_steps(*theirs, params, grads), 1e-13, settings)


CASE = Case(
    reference=AdamW,
    options=OPTIONS,
    busy={"lr": 0.1, "weight_decay": 0.01},
    vectors=_vectors,
    properties=_properties,
    limits=_limits,
    fixed=("nesterov",),
    smooth={"eps_root": 1e-8},
    shows_with={"decay": {"weight_decay": 0.1}},
)
