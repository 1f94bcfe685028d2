"""StableAdamW: Wortsman et al., "Stable and low-precision training for large-scale vision-language models",
arXiv 2304.13013, algorithm 2."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from layerwise.rules import stableadamw as rule

from .case import Case
from .paths import close, data, path, torch_steps
from .stepper import Stepper
from .tensors import divide, indices, rms


class StableAdamW(Stepper):
    """p ← p − η·lam·p − η·m / (√v + eps),  η = lr / max(1, RMS / d),  RMS² = mean(g² / max(v, eps²))"""

    def __init__(
        self,
        lr=1e-3,
        betas=(0.9, 0.99),
        eps=1e-8,
        weight_decay=0,
        eps_root=0,
        clip_threshold=1.0,
        decay_scale="step",
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
        self.clip_threshold = clip_threshold
        self.decay_scale = decay_scale

    def update(self, state, p, g, t, lr, lam, lr_scale):
        """One step of one tensor."""
        lr = lr * lr_scale
        if not state:
            state["m"], state["v"] = np.zeros(p.shape), np.zeros(p.shape)
        b1, b2 = debiased(self.b1, t), debiased(self.b2, t)
        ratios, r = np.empty(p.shape), np.empty(p.shape)
        for i in indices(p):
            state["m"][i] = b1 * state["m"][i] + (1 - b1) * g[i]
            state["v"][i] = b2 * state["v"][i] + (1 - b2) * g[i] * g[i]
            root = math.sqrt(state["v"][i] + self.eps_root)
            ratios[i] = divide(g[i], self.eps if root < self.eps else root)
            r[i] = divide(state["m"][i], root + self.eps)
        update_rms, eta = rms(ratios), lr
        if self.clip_threshold is not None:
            # Python's max keeps its first argument where that is NaN, and a NaN must not get lost.
            eta = lr / max(update_rms / self.clip_threshold, 1.0)
        shrink = {"step": eta * lam, "lr": lr * lam, "none": lam}[self.decay_scale]
        new_p = np.empty(p.shape)
        for i in indices(p):
            new_p[i] = p[i] - shrink * p[i] - eta * r[i]
        return new_p, {"update_rms": update_rms, "trust_ratio": eta / lr if lr else 1.0}


def debiased(beta, t):
    """β·(1 − β^(t−1)) / (1 − β^t)"""
    return beta * (1 - beta ** (t - 1)) / (1 - beta**t)


# ---- what else tests know of it


OPTIONS = {
    "lr": (0.1, 0.01),
    "betas": ((0.9, 0.99), (0.0, 0.5), (0.5, 0.0)),
    "eps": (1e-8, 1e-2),
    "weight_decay": (0.0, 0.1),
    "eps_root": (0.0, 1e-3),
    "clip_threshold": (1.0, None, 0.5, 2.0),
    "decay_scale": ("step", "lr", "none"),
}


def _vectors(world: Any) -> None:
    """Three steps by hand, each number of the algorithm a line: v, RMS and m of one element, then the step.

    With betas (1/2, 3/4) the debiased decay rates are 0, 1/3, 3/7 and 0, 3/7, 21/37.
    """
    expected, m, v, p = [], 0.0, 0.0, 2.0
    for b1, b2, g in ((0, 0, 1.0), (1 / 3, 3 / 7, 4.0), (3 / 7, 21 / 37, -2.0)):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        size = 0.1 / max(1.0, abs(g) / v**0.5)
        p = p - size * 0.2 * p - size * m / v**0.5
        expected.append([[p]])
    steps = path(
        world, rule.StableAdamW(0.1, (0.5, 0.75), 0.0, 0.2), [np.array([2.0])], [[[x]] for x in (1.0, 4.0, -2.0)]
    )
    close([one for [one] in steps], [one for [one] in expected], 1e-14)
    np.testing.assert_allclose([x for [[x]] in expected], [1.86, 1.7562279153, 1.7157653408], rtol=1e-9)


def _properties(world: Any) -> None:
    """A gradient that grows by a factor is answered by a shorter step, and where it does not, all is as in AdamW."""
    draw = np.random.default_rng(7)
    for shape in ((6, 5), (7,), (2, 3, 4)):
        p, g = draw.normal(size=shape), draw.normal(size=shape)
        free, held = (rule.StableAdamW(0.1, eps=0.0, clip_threshold=d) for d in (None, 1.0))
        (_, one), (_, other) = (
            [after - before for [after], [before] in zip(steps, [[p], *steps], strict=False)]
            for steps in (path(world, settings, [p], [[g], [100 * g]]) for settings in (free, held))
        )
        b2 = 0.99 * (1 - 0.99) / (1 - 0.99**2)
        rms = 100 / np.sqrt(b2 + (1 - b2) * 1e4)
        assert rms > 1.4
        np.testing.assert_allclose(other * rms, one, rtol=1e-9)
        close(path(world, held, [p], [[g], [g], [g]])[-1], path(world, free, [p], [[g], [g], [g]])[-1], 1e-13)


def _limits(world: Any) -> None:
    """Without the bound it is AdamW."""
    params, grads = data(3)
    settings = rule.StableAdamW(0.1, (0.8, 0.9), 1e-8, 0.2, clip_threshold=None)
    theirs = torch_steps(torch.optim.AdamW, {"betas": (0.8, 0.9), "weight_decay": 0.2}, params, grads)
    close(path(world, settings, params, grads)[-1], theirs, 1e-12)


CASE = Case(
    reference=StableAdamW,
    options=OPTIONS,
    busy={"lr": 0.1, "weight_decay": 0.01},
    vectors=_vectors,
    properties=_properties,
    limits=_limits,
    smooth={"eps_root": 1e-8},
    measured={"eps": 0.0},
    shows_with={"decay_scale": {"weight_decay": 0.1}},
)
