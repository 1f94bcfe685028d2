"""LANS: Zheng et al., "Accelerated Large Batch Optimization of BERT Pretraining in 54 minutes", arXiv 2006.13484."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from layerwise.rules import lans as rule

from .case import Case, floor_below_bound
from .paths import close, data, path, torch_steps
from .stepper import Stepper
from .tensors import divide, indices, norm, trust_ratio


class Lans(Stepper):
    """p ← p − lr·‖p‖·(b1·r/‖r‖ + (1 − b1)·c/‖c‖), r and c being LAMB's r of m and of the normalized gradient"""

    def __init__(
        self,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=0,
        eps_root=0,
        adapt=True,
        trust_clip=None,
        max_weight_norm=None,
        zero_norm_ratio=1,
        min_norm=0,
        max_grad_value=None,
        maximize=False,
        blocks=None,
    ):
        super().__init__(lr, weight_decay, blocks, None, None, max_grad_value, maximize)
        self.b1, self.b2 = betas
        self.eps = eps
        self.eps_root = eps_root
        self.adapt = adapt
        self.trust_clip = trust_clip
        self.max_weight_norm = max_weight_norm
        self.zero_norm_ratio = zero_norm_ratio
        self.min_norm = min_norm

    def update(self, state, p, g, t, lr, lam, lr_scale):
        """One step of one tensor."""
        lr = lr * lr_scale
        if not state:
            state["m"], state["v"] = np.zeros(p.shape), np.zeros(p.shape)
        size = norm(g)
        r, c = np.empty(p.shape), np.empty(p.shape)
        for i in indices(g):
            unit = 0.0 if size == 0 else g[i] / size
            state["m"][i] = self.b1 * state["m"][i] + (1 - self.b1) * unit
            state["v"][i] = self.b2 * state["v"][i] + (1 - self.b2) * unit * unit
            below = math.sqrt(state["v"][i] / (1 - self.b2**t) + self.eps_root) + self.eps
            r[i] = divide(state["m"][i] / (1 - self.b1**t), below) + lam * p[i]
            c[i] = divide(unit, below) + lam * p[i]
        weight_norm, update_norm = norm(p), norm(r)
        norms = update_norm, norm(c)
        ratio_r, ratio_c = (trust_ratio(self, weight_norm, x, lam, self.max_weight_norm) for x in norms)
        new_p = np.empty(p.shape)
        for i in indices(p):
            new_p[i] = p[i] - lr * (self.b1 * ratio_r * r[i] + (1 - self.b1) * ratio_c * c[i])
        return new_p, {"weight_norm": weight_norm, "update_norm": update_norm, "trust_ratio": ratio_r}


# ---- what else tests know of it


OPTIONS = {
    "lr": (0.1, 0.01),
    "betas": ((0.9, 0.999), (0.0, 0.5), (0.5, 0.0)),
    "eps": (1e-6, 1e-2),
    "weight_decay": (0.0, 0.1),
    "eps_root": (0.0, 1e-3),
    "max_weight_norm": (None, 0.5),
}


# By NumPy, each line of the algorithm a line of code: g/‖g‖, m, v, r, c, and the sum of the two normalized directions.
EXPECTED = (
    [[0.783975624387, 1.783975220244, 2.783975085529], [0.916583540438, 1.572275411089, 2.561052238227]],
    [[0.802434476425, 1.784473577179, 2.76651290194], [0.89907432752, 1.572643007659, 2.525892756758]],
)


def _vectors(world: Any) -> None:
    """Two steps of algorithm 2 by hand, for whole arrays."""
    p, gs = np.array([1.0, 2.0, 3.0]), (np.array([0.1, 0.2, 0.3]), np.array([-0.3, 0.1, 0.2]))
    for lam, expected in ((0.0, EXPECTED[0]), (0.1, EXPECTED[1])):
        steps = path(world, rule.Lans(lr=0.1, weight_decay=lam), [p], [[g] for g in gs])
        close([one for [one] in steps], expected, 1e-11, lam)


def _properties(world: Any) -> None:
    draw = np.random.default_rng(7)
    for shape in ((6, 5), (7,), (2, 3, 4)):
        p, g = draw.normal(size=shape), draw.normal(size=shape)
        settings = rule.Lans(lr=0.05, weight_decay=0.1)
        once, scaled = (path(world, settings, [p], [[k * g], [k * g - k]]) for k in (1.0, 1e3))
        close(once[1], scaled[1], 1e-13)  # a gradient's length does not matter
        [[after], *_] = once
        # The first step goes along one direction, because m is the gradient then.
        np.testing.assert_allclose(np.linalg.norm(after - p), 0.05 * np.linalg.norm(p), rtol=1e-12)


def _limits(world: Any) -> None:
    """With the ratios off and b1 = 0 it is RMSprop's direction of the normalized gradient: AdamW with b1 = 0."""
    settings = rule.Lans(0.1, (0.0, 0.9), 1e-8, adapt=False, weight_decay=0.2)
    params, grads = data(3)
    unit = [[g / (np.linalg.norm(g) or 1.0) for g in gs] for gs in grads]
    theirs = torch_steps(torch.optim.AdamW, {"betas": (0.0, 0.9), "weight_decay": 0.2}, params, unit)
    close(path(world, settings, params, grads)[-1], theirs, 1e-13)


CASE = Case(
    reference=Lans,
    options=OPTIONS,
    busy={"lr": 0.1, "weight_decay": 0.01},
    vectors=_vectors,
    properties=_properties,
    limits=_limits,
    consistent=floor_below_bound,
    smooth={"eps_root": 1e-8},
)
