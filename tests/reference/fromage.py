"""Fromage: Bernstein et al., "On the distance between two neural networks and the stability of learning", 2002.03432.

Where a norm is 0, and for `p_bound`, the authors' code decides (github.com/jxbz/fromage).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from layerwise.rules import fromage as rule

from .case import Case
from .paths import close, data, path
from .stepper import Stepper
from .tensors import at_least, indices, norm


class Fromage(Stepper):
    """p ← (p − lr·(‖p‖/‖g‖)·g) / √(1 + lr²), and then no longer than p_bound times the first norm"""

    def __init__(
        self,
        lr=0.01,
        momentum=0,
        weight_decay=0,
        p_bound=None,
        min_norm=0,
        max_grad_norm=None,
        max_grad_norm_per_tensor=None,
        max_grad_value=None,
        maximize=False,
        blocks=None,
    ):
        super().__init__(lr, weight_decay, blocks, max_grad_norm, max_grad_norm_per_tensor, max_grad_value, maximize)
        self.momentum = momentum
        self.p_bound = p_bound
        self.min_norm = min_norm

    def update(self, state, p, g, t, lr, lam, lr_scale):
        """One step of one tensor."""
        lr = lr * lr_scale
        if not state:
            state["b"], state["first"] = np.zeros(p.shape), norm(p)
        for i in indices(p):
            state["b"][i] = self.momentum * state["b"][i] + g[i]
        p_norm, b_norm = norm(p), norm(state["b"])
        above, below = at_least(p_norm, self.min_norm), at_least(b_norm, self.min_norm)
        ratio = above / below if above > 0 and below > 0 else 1.0
        new_p = np.empty(p.shape)
        for i in indices(p):
            new_p[i] = (p[i] - lr * ratio * state["b"][i] - lr * lam * p[i]) / math.sqrt(1 + lr**2)
        if self.p_bound is not None and norm(new_p) > self.p_bound * state["first"]:
            factor = self.p_bound * state["first"] / norm(new_p)
            for i in indices(p):
                new_p[i] *= factor
        return new_p, {"weight_norm": p_norm, "update_norm": b_norm, "trust_ratio": ratio}


# ---- what else tests know of it


OPTIONS = {
    "lr": (0.1, 0.01),
    "momentum": (0.0, 0.9),
    "weight_decay": (0.0, 0.1),
    "p_bound": (None, 1.0, 0.9, 2.0),
}


def _vectors(world: Any) -> None:
    """By hand: ‖p‖ = ‖g‖ = 5, so that p − lr·g is divided by √1.25, and what is left is 5 long if g is across p."""
    root = math.sqrt(1.25)
    steps = (([4.0, 3.0], [1 / root, 2.5 / root]), ([4.0, -3.0], [1 / root, 5.5 / root]), ([0.0, 0.0], [3.0, 4.0]))
    for g, expected in steps:
        expected = np.array(expected) if any(g) else np.array(expected) / root
        [[found]] = path(world, rule.Fromage(lr=0.5), [np.array([3.0, 4.0])], [[np.array(g)]])
        close([found], [expected], 1e-14)
    [[found]] = path(world, rule.Fromage(lr=0.5), [np.zeros(2)], [[np.array([1.0, -2.0])]])
    close([found], [np.array([-0.5, 1.0]) / root], 1e-14)
    # The second gradient is met by half of the first.
    settings = rule.Fromage(lr=0.5, momentum=0.5)
    once, twice = path(world, settings, [np.array([3.0, 4.0])], [[np.array([4.0, -3.0])], [np.array([0.0, 1.5])]])
    close(once, [np.array([1.0, 5.5]) / root], 1e-14)
    size = np.linalg.norm([1.0, 5.5]) / root / 2
    close(twice, [(np.array([1.0, 5.5]) / root - 0.5 * size * np.array([2.0, 0.0])) / root], 1e-14)


def _properties(world: Any) -> None:
    params, grads = data(3)
    once, scaled = (path(world, rule.Fromage(lr=0.1), params, [[k * g for g in gs] for gs in grads]) for k in (1, 100))
    # A gradient's length does not matter, but to the last tensor: that has none.
    close(once[-1][:-1], scaled[-1][:-1], 1e-12)
    for p_bound in (0.9, 1.0, 1.05):
        for step in path(world, rule.Fromage(lr=0.3, p_bound=p_bound), params, grads):
            for p, new in zip(params, step, strict=True):
                assert np.linalg.norm(new) <= p_bound * np.linalg.norm(p) * (1 + 1e-12)
    p = np.array([3.0, 4.0])
    for step in path(world, rule.Fromage(lr=0.3), [p], [[np.array([4.0, -3.0])]]):
        np.testing.assert_allclose(np.linalg.norm(step[0]), 5.0, rtol=1e-14)  # across p the norm stays


CASE = Case(
    reference=Fromage,
    options=OPTIONS,
    busy={"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "p_bound": 1.0},
    vectors=_vectors,
    properties=_properties,
    measured=None,
    by_ratio=True,
    shows_with={"max_grad_norm_per_tensor": {"momentum": 0.9}, "max_grad_norm": {"momentum": 0.9}},
)
