"""The programs of StableAdamW, as device functions.

Printed from rules/stableadamw.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import PrintedFunctions
from layerwise.engines.gpu.kernels.common import at_least, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns

# The numbers that are known before a tensor is read.
B1, A1, B2, A2, EPS_ROOT, EPS, THRESHOLD, LR, LAM, LAM_SIZE = columns(10)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + B1).to(COMPUTE), tl.load(k + A1).to(COMPUTE), tl.load(k + B2).to(COMPUTE),
        tl.load(k + A2).to(COMPUTE), tl.load(k + EPS_ROOT).to(COMPUTE), tl.load(k + EPS).to(COMPUTE),
        tl.load(k + LR).to(COMPUTE), tl.load(a + 0).to(COMPUTE), tl.load(a + 1).to(COMPUTE))

@triton.jit
def keep(k, p, g, s):
    b1, a1, b2, a2, eps_root, eps, lr, answer0, answer1 = k
    exp_avg, exp_avg_sq = s
    exp_avg_ = b1 * exp_avg + a1 * g
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (g * g)
    return (exp_avg_, exp_avg_sq_)

@triton.jit
def terms_0(k, p, g, s):
    b1, a1, b2, a2, eps_root, eps, lr, answer0, answer1 = k
    exp_avg, exp_avg_sq = s
    return (g / at_least(root(exp_avg_sq + eps_root), eps),)

@triton.jit
def apply(k, p, g, s, x):
    b1, a1, b2, a2, eps_root, eps, lr, answer0, answer1 = k
    exp_avg, exp_avg_sq = s
    y0 = answer1 * (exp_avg / (root(exp_avg_sq + eps_root) + eps))
    return (p - answer0 * unless_off(answer0, p) - y0, exp_avg, exp_avg_sq)

@triton.jit
def answer_0(k, S, n, old, a, to):
    mean0 = S[-1] / n
    update_rms = root(mean0)
    y1 = at_least(update_rms / tl.load(k + THRESHOLD), 1.0)
    trust_ratio = 1.0 / y1
    y3 = tl.load(k + LAM_SIZE) * (tl.load(k + LR) * trust_ratio)
    tl.store(a + 0, tl.load(k + LAM) + y3)
    tl.store(a + 1, tl.load(k + LR) * trust_ratio)
    tl.store(to + 0, update_rms)
    tl.store(to + 1, trust_ratio)

@triton.jit
def apply_clip_threshold_none(k, p, g, s, x):
    b1, a1, b2, a2, eps_root, eps, lr, answer0, answer1 = k
    exp_avg, exp_avg_sq = s
    exp_avg_ = b1 * exp_avg + a1 * g
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (g * g)
    y2 = lr * (exp_avg_ / (root(exp_avg_sq_ + eps_root) + eps))
    return (p - answer0 * unless_off(answer0, p) - y2, exp_avg_, exp_avg_sq_)

@triton.jit
def answer_0_clip_threshold_none(k, S, n, old, a, to):
    tl.store(a + 0, tl.load(k + LAM) + tl.load(k + LAM_SIZE) * tl.load(k + LR))
    tl.store(to + 0, 1.0)

PROGRAMS = {
    "StableAdamW": PrintedFunctions(values, keep=keep, terms=(terms_0,), apply=apply, answers=(answer_0,)),
    "StableAdamWClipThresholdNone": PrintedFunctions(values, apply=apply_clip_threshold_none,
        answers=(answer_0_clip_threshold_none,)),
}
