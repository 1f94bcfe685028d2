"""The programs of AdamW, as device functions.

Printed from rules/adamw.py by `make generate`: change that, not this file.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import root, unless_off
from layerwise.engines.gpu.kernels.tables import columns
from layerwise.engines.gpu.program import Program

# The numbers that are known before a tensor is read.
L2, SHRINK, B1, A1, B2, A2, AHEAD, BESIDE, C2, EPS_ROOT, EPS, LR = columns(12)


@triton.jit
def adam_w_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    shrink = tl.load(k + SHRINK).to(COMPUTE)
    b1 = tl.load(k + B1).to(COMPUTE)
    a1 = tl.load(k + A1).to(COMPUTE)
    b2 = tl.load(k + B2).to(COMPUTE)
    a2 = tl.load(k + A2).to(COMPUTE)
    c2 = tl.load(k + C2).to(COMPUTE)
    eps_root = tl.load(k + EPS_ROOT).to(COMPUTE)
    eps = tl.load(k + EPS).to(COMPUTE)
    lr = tl.load(k + LR).to(COMPUTE)
    return (l2, shrink, b1, a1, b2, a2, c2, eps_root, eps, lr)


@triton.jit
def adam_w_apply(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c2, eps_root, eps, lr = k
    m, v = s
    g_ = g + l2 * unless_off(l2, p)
    m_ = b1 * m + a1 * g_
    v_ = b2 * v + a2 * (g_ * g_)
    v_hat = c2 * v_
    u = m_ / (root(v_hat + eps_root) + eps)
    return (p - shrink * unless_off(shrink, p) - lr * u, m_, v_)


@triton.jit
def adam_w_report(k, S, n, old, to):
    tl.store(to + 0, 1.0)


@triton.jit
def adam_w_nesterov_true_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    shrink = tl.load(k + SHRINK).to(COMPUTE)
    b1 = tl.load(k + B1).to(COMPUTE)
    a1 = tl.load(k + A1).to(COMPUTE)
    b2 = tl.load(k + B2).to(COMPUTE)
    a2 = tl.load(k + A2).to(COMPUTE)
    ahead = tl.load(k + AHEAD).to(COMPUTE)
    beside = tl.load(k + BESIDE).to(COMPUTE)
    c2 = tl.load(k + C2).to(COMPUTE)
    eps_root = tl.load(k + EPS_ROOT).to(COMPUTE)
    eps = tl.load(k + EPS).to(COMPUTE)
    lr = tl.load(k + LR).to(COMPUTE)
    return (l2, shrink, b1, a1, b2, a2, ahead, beside, c2, eps_root, eps, lr)


@triton.jit
def adam_w_nesterov_true_apply(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, ahead, beside, c2, eps_root, eps, lr = k
    m, v = s
    g_ = g + l2 * unless_off(l2, p)
    m_ = b1 * m + a1 * g_
    ahead_ = ahead * m_ + beside * g_
    v_ = b2 * v + a2 * (g_ * g_)
    v_hat = c2 * v_
    u = ahead_ / (root(v_hat + eps_root) + eps)
    return (p - shrink * unless_off(shrink, p) - lr * u, m_, v_)


@triton.jit
def adam_w_nesterov_true_report(k, S, n, old, to):
    tl.store(to + 0, 1.0)


PROGRAMS = {
    "AdamW": Program(
        states=("exp_avg", "exp_avg_sq"),
        layer_states=(),
        rounds=(),
        keeps=None,
        keep_writes=0,
        apply_writes=3,
        cached=(),
        rereads=True,
        values=adam_w_values,
        keep=None,
        terms=(),
        apply=adam_w_apply,
        answers=(),
        report=adam_w_report,
        remember=None,
    ),
    "AdamWNesterovTrue": Program(
        states=("exp_avg", "exp_avg_sq"),
        layer_states=(),
        rounds=(),
        keeps=None,
        keep_writes=0,
        apply_writes=3,
        cached=(),
        rereads=True,
        values=adam_w_nesterov_true_values,
        keep=None,
        terms=(),
        apply=adam_w_nesterov_true_apply,
        answers=(),
        report=adam_w_nesterov_true_report,
        remember=None,
    ),
}
