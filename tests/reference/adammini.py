"""Adam-mini: Zhang et al., "Adam-mini: Use Fewer Learning Rates To Gain More", arXiv 2406.16793, algorithm 2."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from layerwise.rules import adammini as rule

from .case import Case
from .paths import close, data, path, torch_steps
from .stepper import Stepper
from .tensors import divide, indices, sum_of_squares


class AdamMini(Stepper):
    """p ← p − lr·lam·p − lr·m̂ / (√v̂ + eps),  v being an average of mean(g²)"""

    def __init__(
        self,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        eps_root=0,
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

    def update(self, state, p, g, t, lr, lam, lr_scale):
        """One step of one block."""
        lr = lr * lr_scale
        if not state:
            state["m"], state["v"] = np.zeros(p.shape), 0.0
        mean = sum_of_squares(g) / max(1, g.size)
        state["v"] = self.b2 * state["v"] + (1 - self.b2) * mean
        below = math.sqrt(state["v"] / (1 - self.b2**t) + self.eps_root) + self.eps
        new_p = np.empty(p.shape)
        for i in indices(p):
            state["m"][i] = self.b1 * state["m"][i] + (1 - self.b1) * g[i]
            new_p[i] = p[i] - lr * lam * p[i] - lr * divide(state["m"][i] / (1 - self.b1**t), below)
        return new_p, {"average_rms": math.sqrt(state["v"]), "trust_ratio": 1.0}


# ---- what else tests know of it


OPTIONS = {
    "lr": (0.1, 0.01),
    "betas": ((0.9, 0.999), (0.0, 0.5), (0.5, 0.0)),
    "eps": (1e-8, 1e-2),
    "weight_decay": (0.0, 0.1),
    "eps_root": (0.0, 1e-3),
}


# By NumPy, each line of the algorithm a line of code, for b1 = 0.9 and b2 = 0.5.
EXPECTED = (
    [[0.953708997154, 1.907417994308, 2.861126991463], [1.004872737142, 1.839199674325, 2.746617668634]],
    [[0.943708997154, 1.887417994308, 2.831126991463], [0.985435647170, 1.800325494382, 2.688306398719]],
)


def _vectors(world: Any) -> None:
    """Two steps of the algorithm by hand, for whole arrays."""
    p, gs = np.array([1.0, 2.0, 3.0]), (np.array([0.1, 0.2, 0.3]), np.array([-0.3, 0.1, 0.2]))
    for lam, expected in ((0.0, EXPECTED[0]), (0.1, EXPECTED[1])):
        steps = path(world, rule.AdamMini(lr=0.1, betas=(0.9, 0.5), weight_decay=lam), [p], [[g] for g in gs])
        close([one for [one] in steps], expected, 1e-11, lam)


def _properties(world: Any) -> None:
    draw = np.random.default_rng(7)
    for shape in ((6, 5), (7,), (2, 3, 4)):
        p, g = draw.normal(size=shape), draw.normal(size=shape)
        settings = rule.AdamMini(lr=0.05, eps=0.0)
        once, scaled = (path(world, settings, [p], [[k * g], [k * g - k]]) for k in (1.0, 1e3))
        close(once[1], scaled[1], 1e-13)  # a gradient's unit does not matter
        np.testing.assert_allclose(np.sqrt(np.mean((once[0][0] - p) ** 2)), 0.05, rtol=1e-12)  # it moves by lr


def _limits(world: Any) -> None:
    """Where all squares of a gradient are alike, it is AdamW."""
    settings = rule.AdamMini(0.1, (0.9, 0.99), 1e-6, weight_decay=0.2)
    params, grads = data(3)
    alike = [[np.where(g < 0, -1.0, 1.0) * (1 + t) for g in gs] for t, gs in enumerate(grads)]
    theirs = torch_steps(torch.optim.AdamW, {"betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.2}, params, alike)
    close(path(world, settings, params, alike)[-1], theirs, 1e-13)


CASE = Case(
    reference=AdamMini,
    options=OPTIONS,
    busy={"lr": 0.1, "weight_decay": 0.01},
    vectors=_vectors,
    properties=_properties,
    limits=_limits,
    smooth={"eps_root": 1e-8},
)
