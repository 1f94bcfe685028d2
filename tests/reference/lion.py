"""Lion: Chen et al., "Symbolic Discovery of Optimization Algorithms", arXiv 2302.06675, algorithm 2."""

from __future__ import annotations

from typing import Any

import numpy as np

from layerwise.rules import lion as rule

from .case import Case, Options, one_hold_of_norm
from .paths import close, path
from .stepper import Stepper
from .tensors import agreeing, indices, norm, stepped, trust_ratio


class Lion(Stepper):
    """p ← p − lr·(sign(b1·m + (1 − b1)·g) + lam·p)"""

    def __init__(
        self,
        lr=1e-4,
        betas=(0.9, 0.99),
        weight_decay=0,
        decay="ratio",
        adapt=False,
        trust_clip=None,
        zero_norm_ratio=1,
        min_norm=0,
        caution=False,
        keep_norm=False,
        radial=None,
        momentum_dtype=None,
        max_grad_norm=None,
        max_grad_norm_per_tensor=None,
        max_grad_value=None,
        maximize=False,
        blocks=None,
    ):
        super().__init__(lr, weight_decay, blocks, max_grad_norm, max_grad_norm_per_tensor, max_grad_value, maximize)
        self.b1, self.b2 = betas
        self.decay = decay
        self.adapt = adapt
        self.trust_clip = trust_clip
        self.zero_norm_ratio = zero_norm_ratio
        self.min_norm = min_norm
        self.caution = caution
        self.keep_norm = keep_norm
        self.radial = radial

    def update(self, state, p, g, t, lr, lam, lr_scale):
        """One step of one tensor."""
        lr = lr * lr_scale
        m = state.setdefault("m", np.zeros(p.shape))
        u, slope, decayed, found = np.empty(p.shape), np.empty(p.shape), np.array(p, dtype=float), {}
        for i in indices(p):
            slope[i] = g[i] + lam * p[i] if self.decay == "l2" else g[i]
            u[i] = np.sign(self.b1 * m[i] + (1 - self.b1) * slope[i])
            m[i] = self.b2 * m[i] + (1 - self.b2) * slope[i]
        if self.caution:
            u, found["agreeing"] = agreeing(u, slope)
        for i in indices(p):
            if self.decay == "decoupled":
                decayed[i] = p[i] - lr * lam * p[i]
            if self.decay == "ratio":
                u[i] = u[i] + lam * p[i]
        weight_norm, update_norm = norm(decayed), norm(u)
        ratio = trust_ratio(self, weight_norm, update_norm, lam)
        new_p = stepped(state, decayed, u, lr * ratio, self.keep_norm, self.radial)
        return new_p, {**found, "weight_norm": weight_norm, "update_norm": update_norm, "trust_ratio": ratio}


# ---- what else tests know of it


OPTIONS = {
    "lr": (0.1, 0.01),
    "betas": ((0.9, 0.99), (0.0, 0.5), (0.5, 0.0)),
    "weight_decay": (0.0, 0.1),
    "decay": ("ratio", "decoupled", "l2"),
    "adapt": (False, True, "decayed"),
    "momentum_dtype": (None,),  # how it is stored concerns a front, not the rule
}


def _vectors(world: Any) -> None:
    """Worked out by hand."""
    p, gs = np.array([1.0, -2.0, 0.0]), (np.array([0.1, 0.2, 0.0]), np.array([-0.3, -0.01, 0.2]))
    for options, expected in (
        # m is 0.001, 0.002, 0 after the first step; 0.9·m + 0.1·g is −0.0291, 0.0008, 0.02 in the second.
        ({}, [[0.9, -2.1, 0.0], [1.0, -2.2, -0.1]]),
        ({"weight_decay": 0.5}, [[0.85, -2.0, 0.0], [0.9075, -2.0, -0.1]]),
        ({"weight_decay": 0.5, "decay": "decoupled"}, [[0.85, -2.0, 0.0], [0.9075, -2.0, -0.1]]),
        # With 0.5·p in the gradient the second one turns round: −0.98, and 0.9·m + 0.1·g is below 0 for it.
        ({"weight_decay": 0.5, "decay": "l2"}, [[0.9, -1.9, 0.0], [0.8, -1.8, -0.1]]),
    ):
        steps = path(world, rule.Lion(lr=0.1, **options), [p], [[g] for g in gs])
        close([one for [one] in steps], expected, 1e-14, options)
    [[q]] = path(world, rule.Lion(lr=0.1, adapt=True), [np.array([3.0, 4.0])], [[np.array([1e-9, 7.0])]])
    close([q], [np.array([3.0, 4.0]) - 0.5 / np.sqrt(2)], 1e-14)
    [[q]] = path(world, rule.Lion(lr=0.1, radial=0.0), [np.array([3.0, 4.0])], [[np.ones(2)]])
    close([q], [[2.984, 4.012]], 1e-14)  # of (1, 1) what is across (3, 4) is (0.16, −0.12)


def _properties(world: Any) -> None:
    draw = np.random.default_rng(7)
    for shape in ((6, 5), (7,), (2, 3, 4)):
        p, g = draw.normal(size=shape), draw.normal(size=shape)
        for scale in (1e-6, 1e6):
            [[plain], [scaled]] = (path(world, rule.Lion(0.05), [p], [[k * g]])[0] for k in (1.0, scale))
            close([plain], [p - 0.05 * np.sign(g)], 1e-14)
            close([plain], [scaled], 1e-14)
        before = p
        for [after] in path(world, rule.Lion(0.05, adapt=True, weight_decay=0.3), [p], [[g], [2 * g], [g - 1]]):
            moved = np.linalg.norm(after - before) / np.linalg.norm(before)
            np.testing.assert_allclose(moved, 0.05, rtol=1e-12)
            before = after


def _consistent(options: Options) -> Options:
    options = one_hold_of_norm(options)
    return {**options, "keep_norm": False} if options["decay"] == "decoupled" else options


CASE = Case(
    reference=Lion,
    options=OPTIONS,
    busy={"lr": 0.1, "weight_decay": 0.01},
    vectors=_vectors,
    properties=_properties,
    consistent=_consistent,
    measured={"adapt": True},
    relative={"adapt": True},
    jumps=True,
    shows_with={
        "decay": {"weight_decay": 0.1, "adapt": True},
        ("adapt", "decayed"): {"weight_decay": 0.1},
        "trust_clip": {"adapt": True},
        "min_norm": {"adapt": True},
        "zero_norm_ratio": {"adapt": True},
        "max_grad_norm": {"decay": "l2", "weight_decay": 0.1},
    },
)
