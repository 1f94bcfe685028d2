"""LAMB: You et al., "Large Batch Optimization for Deep Learning", arXiv 1904.00962, algorithm 2."""

import math

import numpy as np

from .stepper import Stepper
from .tensors import at_least, clip, divide, indices, norm


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
        adapt=True,
        trust_clip=None,
        max_weight_norm=None,
        grad_averaging=True,
        zero_norm_ratio=1,
        min_norm=0,
        trust_eps=0,
        l2=0,
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

    def update(self, state, p, g, t, lr, lam, lr_scale):
        """One step of one tensor."""
        lr = lr * lr_scale
        if not state:
            state["m"], state["v"] = np.zeros(p.shape), np.zeros(p.shape)
        g = self.with_decay(g, p, self.l2 + lam if self.decay == "l2" else self.l2)
        if self.decay == "decoupled":
            p = self.with_decay(p, p, -lr * lam)
        self.average(state, g)
        r = self.adam_direction(state, t)
        if self.decay == "ratio":
            r = self.with_decay(r, p, lam)

        weight_norm, update_norm = norm(p), norm(r)
        ratio = self.trust_ratio(weight_norm, update_norm, lam)
        rate = lr * ratio
        if self.bias_correction == "lr":
            rate = rate * math.sqrt(1 - self.b2**t) / (1 - self.b1**t)
        new_p = np.empty(p.shape)
        for i in indices(p):
            new_p[i] = p[i] - rate * r[i]
        return new_p, {"weight_norm": weight_norm, "update_norm": update_norm, "trust_ratio": ratio}

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

    def trust_ratio(self, weight_norm, update_norm, lam):
        """clip(min(‖p‖, max_weight_norm) / (‖r‖ + trust_eps), low, high), no norm below min_norm"""
        if self.adapt is False or (self.adapt == "decayed" and lam == 0):
            return 1.0
        weight_norm, update_norm = at_least(weight_norm, self.min_norm), at_least(update_norm, self.min_norm)
        if weight_norm == 0 or update_norm == 0:
            return self.zero_norm_ratio
        phi = weight_norm if self.max_weight_norm is None else min(weight_norm, self.max_weight_norm)
        low, high = self.trust_clip or (None, None)
        return clip(phi / (update_norm + self.trust_eps), low, high)
