"""LARS: You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks", arXiv 1708.03888, algorithm 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from layerwise.rules import lars as rule

from .case import Case, Options, one_hold_of_norm
from .paths import close, data, path, torch_steps
from .stepper import Stepper
from .tensors import agreeing, at_least, clip, divide, indices, norm, stepped


class Lars(Stepper):
    """b ← mu·b + lr·(eta·‖p‖ / (‖g‖ + lam·‖p‖))·(g + lam·p),  p ← p − b"""

    def __init__(
        self,
        lr=1.0,
        momentum=0.9,
        weight_decay=0,
        trust_coefficient=1e-3,
        eps=0,
        nesterov=False,
        dampening=0,
        norm="split",
        lr_in_momentum=True,
        adapt=True,
        trust_clip=None,
        zero_norm_ratio=1,
        min_norm=0,
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
        self.mu = momentum
        self.eta = trust_coefficient
        self.eps = eps
        self.nesterov = nesterov
        self.dampening = dampening
        self.norm = norm
        self.lr_in_momentum = lr_in_momentum
        self.adapt = adapt
        self.trust_clip = trust_clip
        self.zero_norm_ratio = zero_norm_ratio
        self.min_norm = min_norm
        self.l2 = l2
        self.caution = caution
        self.keep_norm = keep_norm
        self.radial = radial

    def update(self, state, p, g, t, lr, lam, lr_scale):
        """One step of one tensor."""
        lr = lr * lr_scale
        with_l2, r = np.empty(p.shape), np.empty(p.shape)
        for i in indices(p):
            with_l2[i] = g[i] + self.l2 * p[i]
            r[i] = with_l2[i] + lam * p[i]

        weight_norm = norm(p)
        update_norm = norm(with_l2) if self.norm == "split" else norm(r)
        ratio = self.trust_ratio(weight_norm, update_norm, lr, lam)

        u = np.empty(p.shape)
        for i in indices(p):
            u[i] = lr * ratio * r[i] if self.lr_in_momentum else ratio * r[i]
        direction, found = self.momentum_direction(state, u, t), {}
        if self.caution:
            direction, found["agreeing"] = agreeing(direction, with_l2)
        if self.adapt == "step":
            update_norm = norm(direction)
            ratio = self.ratio_of_step(weight_norm, update_norm, lr)
        size = (1.0 if self.lr_in_momentum else lr) * (ratio if self.adapt == "step" else 1.0)
        new_p = stepped(state, p, direction, size, self.keep_norm, self.radial)
        return new_p, {**found, "weight_norm": weight_norm, "update_norm": update_norm, "trust_ratio": ratio}

    def ratio_of_step(self, weight_norm, update_norm, lr):
        """lr·eta·‖p‖ / (‖b‖ + eps) of a b that has lr in it, and else eta·‖p‖ / (‖b‖ + eps); no norm below min_norm"""
        weight_norm, update_norm = at_least(weight_norm, self.min_norm), at_least(update_norm, self.min_norm)
        if weight_norm == 0 or update_norm == 0:
            return self.zero_norm_ratio
        return (lr if self.lr_in_momentum else 1.0) * self.eta * weight_norm / (update_norm + self.eps)

    def trust_ratio(self, weight_norm, update_norm, lr, lam):
        """clip(eta·‖p‖ / d / lr, low, high), and eta·‖p‖ / d without a clip; no norm below min_norm"""
        if self.adapt in (False, "step") or (self.adapt == "decayed" and lam == 0):
            return 1.0
        weight_norm, update_norm = at_least(weight_norm, self.min_norm), at_least(update_norm, self.min_norm)
        if weight_norm == 0 or update_norm == 0:
            return self.zero_norm_ratio
        d = update_norm + lam * weight_norm + self.eps if self.norm == "split" else update_norm + self.eps
        ratio = self.eta * weight_norm / d
        if self.trust_clip is None:
            return ratio
        low, high = self.trust_clip
        return clip(divide(ratio, lr), low, high)

    def momentum_direction(self, state, u, t):
        """b ← mu·b + k·u; the direction is b, or u + mu·b with nesterov"""
        if self.mu == 0:
            return u
        if "b" not in state:
            state["b"] = np.zeros(u.shape)
        b = state["b"]
        k = 1 if t == 1 else 1 - self.dampening
        direction = np.empty(u.shape)
        for i in indices(u):
            b[i] = self.mu * b[i] + k * u[i]
            direction[i] = u[i] + self.mu * b[i] if self.nesterov else b[i]
        return direction


# ---- what else tests know of it


OPTIONS = {
    "lr": (0.1, 1.0),
    "momentum": (0.9, 0.0),
    "weight_decay": (0.0, 0.1),
    "trust_coefficient": (1e-3, 0.5),
    "eps": (0.0, 0.1),
    "nesterov": (False, True),
    "dampening": (0.0, 0.4),
    "norm": ("split", "decayed"),
    "lr_in_momentum": (True, False),
    "trust_clip": (None, (0.5, 1.5), (None, 0.9)),
    "adapt": (True, False, "decayed", "step"),
}


def _consistent(options: Options) -> Options:
    options = one_hold_of_norm(options)
    if options["adapt"] == "step":
        options = {**options, "trust_clip": None, "norm": "split"}
    if options["nesterov"]:
        return {**options, "momentum": options["momentum"] or 0.9, "dampening": 0.0}
    return options


def _vectors(world: Any) -> None:
    """Numbers of optax, timm and apex."""
    w, g = np.array([1.0, 2.0]), np.array([0.5, -1.0])
    for options, expected in (
        ({}, [0.99999, 2.00002]),
        ({"weight_decay": 0.1}, [0.99999, 2.0000133333]),
        ({"weight_decay": 0.1, "norm": "decayed"}, [0.999986583592, 2.000017888544]),
        ({"adapt": "decayed", "lr_in_momentum": False}, [0.995, 2.01]),
        ({"weight_decay": 0.1, "trust_clip": (None, 1)}, [0.999, 2.00133333]),
        ({"weight_decay": 0.1, "min_norm": 10.0}, [1 - 6e-5 / 11, 2 + 8e-5 / 11]),
    ):
        [[p]] = path(world, rule.Lars(lr=0.01, momentum=0, **options), [w], [[g]])
        close([p], [expected], 1e-8, options)
    for inside, expected in ((True, [0.999880999, 2.000238001]), (False, [0.999799999, 2.000400001])):
        steps = path(world, rule.Lars(lr_in_momentum=inside), [w], [[g], [g]], lrs=[0.01, 0.1])
        close(steps[-1], [expected], 1e-9, inside)
    # The whole step is 0.1·1e-3·√5 long; from zero it is one of SGD at lr.
    for inside in (True, False):
        settings = rule.Lars(lr=0.1, adapt="step", lr_in_momentum=inside)
        close(path(world, settings, [w], [[g]])[0], [[0.9999, 2.0002]], 1e-12, inside)
        close(path(world, settings, [0 * w], [[g]])[0], [[-0.05, 0.1]], 1e-12, inside)


def _properties(world: Any) -> None:
    draw = np.random.default_rng(7)
    for shape in ((6, 5), (7,), (2, 3, 4)):
        p, g = draw.normal(size=shape), draw.normal(size=shape)
        _ignores_scale(world, p, g)


def _ignores_scale(world: Any, p: Any, g: Any) -> None:
    settings = rule.Lars()
    close(path(world, settings, [p], [[g], [g]])[1], path(world, settings, [p], [[1e3 * g], [1e-3 * g]])[1], 1e-14)


def _limits(world: Any) -> None:
    """With the ratio off it is SGD with momentum: PyTorch's own."""
    sgd = torch.optim.SGD
    for settings, theirs in (
        (rule.Lars(0.1, adapt=False, weight_decay=0.2), (sgd, {"momentum": 0.9, "weight_decay": 0.2})),
        (rule.Lars(0.1, adapt=False, nesterov=True), (sgd, {"momentum": 0.9, "nesterov": True})),
        (rule.Lars(0.1, adapt=False, dampening=0.3), (sgd, {"momentum": 0.9, "dampening": 0.3})),
        (rule.Lars(0.1, adapt=False, momentum=0, maximize=True), (sgd, {"maximize": True})),
    ):
        params, grads = data(3)
        close(path(world, settings, params, grads)[-1], torch_steps(*theirs, params, grads), 1e-13, settings)


CASE = Case(
    reference=Lars,
    options=OPTIONS,
    busy={"lr": 1.0, "weight_decay": 0.01, "trust_coefficient": 0.1, "dampening": 0.1},
    vectors=_vectors,
    properties=_properties,
    limits=_limits,
    consistent=_consistent,
    relative={"trust_coefficient": 1.0},
    learns_at=0.2,
    fixed=("nesterov",),
    shows_with={
        "norm": {"weight_decay": 0.1},
        "caution": {"weight_decay": 0.1},
        ("adapt", "step"): {"eps": 0.1},
        "max_grad_norm_per_tensor": {"eps": 0.1},
    },
)
