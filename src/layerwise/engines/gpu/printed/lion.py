"""The programs of Lion, as device functions.

Printed from rules/lion.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import Functions
from layerwise.engines.gpu.kernels.parts import at_least, at_most, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns

# The numbers that are known before a tensor is read.
L2, SHRINK, B1, A1, B2, A2, LAM, LR, TRUST_MIN_NORM, TRUST_LOW, TRUST_HIGH, TRUST_UNDEFINED, TRUST_ADAPTS = columns(13)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + L2).to(COMPUTE), tl.load(k + SHRINK).to(COMPUTE), tl.load(k + B1).to(COMPUTE),
        tl.load(k + A1).to(COMPUTE), tl.load(k + B2).to(COMPUTE), tl.load(k + A2).to(COMPUTE),
        tl.load(k + LAM).to(COMPUTE), tl.load(k + LR).to(COMPUTE), tl.load(a + 0).to(COMPUTE),
        tl.load(a + 1).to(COMPUTE))

@triton.jit
def apply(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, lam, lr, answer0, answer1 = k
    (exp_avg,) = s
    y0 = p - shrink * unless_off(shrink, p)
    y1 = g + l2 * unless_off(l2, p)
    y2 = a1 * y1 + b1 * exp_avg
    y3 = tl.where(y2 > 0.0, 1.0, tl.where(y2 < 0.0, -1.0, y2))
    exp_avg_ = b2 * exp_avg + a2 * y1
    return (y0 - lr * (y3 + lam * unless_off(lam, y0)), exp_avg_)

@triton.jit
def answer_0(k, S, n, old, a, to):
    tl.store(to + 0, 1.0)

@triton.jit
def terms_0_adapt_true(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, lam, lr, answer0, answer1 = k
    (exp_avg,) = s
    y0 = p - shrink * unless_off(shrink, p)
    y1 = a1 * (g + l2 * unless_off(l2, p)) + b1 * exp_avg
    y2 = tl.where(y1 > 0.0, 1.0, tl.where(y1 < 0.0, -1.0, y1))
    return (y0, y2 + lam * unless_off(lam, y0))

@triton.jit
def apply_adapt_true(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, lam, lr, answer0, answer1 = k
    (exp_avg,) = s
    y0 = p - shrink * unless_off(shrink, p)
    y1 = g + l2 * unless_off(l2, p)
    y2 = a1 * y1 + b1 * exp_avg
    y3 = tl.where(y2 > 0.0, 1.0, tl.where(y2 < 0.0, -1.0, y2))
    exp_avg_ = b2 * exp_avg + a2 * y1
    return (y0 - answer0 * (y3 + lam * unless_off(lam, y0)), exp_avg_)

@triton.jit
def answer_0_adapt_true(k, S, n, old, a, to):
    weight_norm = root(S[-2])
    y1 = at_least(weight_norm, tl.load(k + TRUST_MIN_NORM))
    update_norm = root(S[-1])
    y3 = at_least(update_norm, tl.load(k + TRUST_MIN_NORM))
    y4 = at_least(y1 / tl.where(y3 == 0.0, 1.0, y3), tl.load(k + TRUST_LOW))
    y5 = tl.where((y1 != 0.0) & (y3 != 0.0), at_most(y4, tl.load(k + TRUST_HIGH)), tl.load(k + TRUST_UNDEFINED))
    trust_ratio = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, y5)
    tl.store(a + 0, tl.load(k + LR) * trust_ratio)
    tl.store(to + 0, weight_norm)
    tl.store(to + 1, update_norm)
    tl.store(to + 2, trust_ratio)

@triton.jit
def terms_0_caution_true(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, lam, lr, answer0, answer1 = k
    (exp_avg,) = s
    y0 = g + l2 * unless_off(l2, p)
    y1 = a1 * y0 + b1 * exp_avg
    y2 = tl.where(y1 > 0.0, 1.0, tl.where(y1 < 0.0, -1.0, y1))
    y3 = ((y2 > 0.0) & (y0 > 0.0)) | ((y2 < 0.0) & (y0 < 0.0))
    return (tl.where(y3, 1.0, 0.0 * y2),)

@triton.jit
def apply_caution_true(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, lam, lr, answer0, answer1 = k
    (exp_avg,) = s
    y0 = p - shrink * unless_off(shrink, p)
    y1 = g + l2 * unless_off(l2, p)
    y2 = a1 * y1 + b1 * exp_avg
    y3 = tl.where(y2 > 0.0, 1.0, tl.where(y2 < 0.0, -1.0, y2))
    y4 = ((y3 > 0.0) & (y1 > 0.0)) | ((y3 < 0.0) & (y1 < 0.0))
    y5 = y3 * tl.where(y4, 1.0, 0.0 * y3) / answer0 + lam * unless_off(lam, y0)
    exp_avg_ = b2 * exp_avg + a2 * y1
    return (y0 - lr * y5, exp_avg_)

@triton.jit
def answer_0_caution_true(k, S, n, old, a, to):
    mean0 = S[-1] / n
    tl.store(a + 0, at_least(mean0, 0.001))
    tl.store(to + 0, 1.0)
    tl.store(to + 1, mean0)

@triton.jit
def terms_1_caution_true_adapt_true(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, lam, lr, answer0, answer1 = k
    (exp_avg,) = s
    y0 = p - shrink * unless_off(shrink, p)
    y1 = g + l2 * unless_off(l2, p)
    y2 = a1 * y1 + b1 * exp_avg
    y3 = tl.where(y2 > 0.0, 1.0, tl.where(y2 < 0.0, -1.0, y2))
    y4 = ((y3 > 0.0) & (y1 > 0.0)) | ((y3 < 0.0) & (y1 < 0.0))
    return (y0, y3 * tl.where(y4, 1.0, 0.0 * y3) / answer0 + lam * unless_off(lam, y0))

@triton.jit
def apply_caution_true_adapt_true(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, lam, lr, answer0, answer1 = k
    (exp_avg,) = s
    x1 = x[1]
    exp_avg_ = b2 * exp_avg + a2 * (g + l2 * unless_off(l2, p))
    return (p - shrink * unless_off(shrink, p) - answer1 * x1, exp_avg_)

@triton.jit
def answer_0_caution_true_adapt_true(k, S, n, old, a, to):
    mean0 = S[-1] / n
    tl.store(a + 0, at_least(mean0, 0.001))
    tl.store(to + 3, mean0)

@triton.jit
def answer_1_caution_true_adapt_true(k, S, n, old, a, to):
    weight_norm = root(S[-2])
    y1 = at_least(weight_norm, tl.load(k + TRUST_MIN_NORM))
    update_norm = root(S[-1])
    y3 = at_least(update_norm, tl.load(k + TRUST_MIN_NORM))
    y4 = at_least(y1 / tl.where(y3 == 0.0, 1.0, y3), tl.load(k + TRUST_LOW))
    y5 = tl.where((y1 != 0.0) & (y3 != 0.0), at_most(y4, tl.load(k + TRUST_HIGH)), tl.load(k + TRUST_UNDEFINED))
    trust_ratio = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, y5)
    tl.store(a + 1, tl.load(k + LR) * trust_ratio)
    tl.store(to + 0, weight_norm)
    tl.store(to + 1, update_norm)
    tl.store(to + 2, trust_ratio)

PROGRAMS = {
    "Lion": Functions(values, apply=apply, answers=(answer_0,)),
    "LionAdaptTrue": Functions(values, terms=(terms_0_adapt_true,), apply=apply_adapt_true,
        answers=(answer_0_adapt_true,)),
    "LionCautionTrue": Functions(values, terms=(terms_0_caution_true,), apply=apply_caution_true,
        answers=(answer_0_caution_true,)),
    "LionCautionTrueAdaptTrue": Functions(values, terms=(terms_0_caution_true, terms_1_caution_true_adapt_true),
        apply=apply_caution_true_adapt_true, answers=(answer_0_caution_true_adapt_true,
        answer_1_caution_true_adapt_true)),
}
