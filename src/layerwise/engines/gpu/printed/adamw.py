"""The programs of AdamW, as device functions.

Printed from rules/adamw.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import PrintedFunctions
from layerwise.engines.gpu.kernels.common import root, unless_off
from layerwise.engines.gpu.kernels.tables import columns

# The numbers that are known before a tensor is read.
L2, SHRINK, B1, A1, B2, A2, AHEAD, BESIDE, C2, EPS_ROOT, EPS, LR = columns(12)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + L2).to(COMPUTE), tl.load(k + SHRINK).to(COMPUTE), tl.load(k + B1).to(COMPUTE),
        tl.load(k + A1).to(COMPUTE), tl.load(k + B2).to(COMPUTE), tl.load(k + A2).to(COMPUTE),
        tl.load(k + AHEAD).to(COMPUTE), tl.load(k + BESIDE).to(COMPUTE), tl.load(k + C2).to(COMPUTE),
        tl.load(k + EPS_ROOT).to(COMPUTE), tl.load(k + EPS).to(COMPUTE), tl.load(k + LR).to(COMPUTE))

@triton.jit
def apply(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, ahead, beside, c2, eps_root, eps, lr = k
    exp_avg, exp_avg_sq = s
    y0 = g + l2 * unless_off(l2, p)
    exp_avg_ = b1 * exp_avg + a1 * y0
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0)
    y3 = exp_avg_ / (root(c2 * exp_avg_sq_ + eps_root) + eps)
    return (p - shrink * unless_off(shrink, p) - lr * y3, exp_avg_, exp_avg_sq_)

@triton.jit
def answer_0(k, S, n, old, a, to):
    tl.store(to + 0, 1.0)

@triton.jit
def apply_nesterov_true(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, ahead, beside, c2, eps_root, eps, lr = k
    exp_avg, exp_avg_sq = s
    y0 = g + l2 * unless_off(l2, p)
    exp_avg_ = b1 * exp_avg + a1 * y0
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0)
    y3 = (ahead * exp_avg_ + beside * y0) / (root(c2 * exp_avg_sq_ + eps_root) + eps)
    return (p - shrink * unless_off(shrink, p) - lr * y3, exp_avg_, exp_avg_sq_)

PROGRAMS = {
    "AdamW": PrintedFunctions(values, apply=apply, answers=(answer_0,)),
    "AdamWNesterovTrue": PrintedFunctions(values, apply=apply_nesterov_true, answers=(answer_0,)),
}
