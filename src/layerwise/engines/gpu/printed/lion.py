"""The programs of Lion, as device functions.

Printed from rules/lion.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import PrintedFunctions
from layerwise.engines.gpu.kernels.common import at_least, at_most, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns

# The numbers that are known before a tensor is read.
L2, SHRINK, B1, A1, B2, A2, LAM, LR, TRUST_MIN_NORM, TRUST_LOW, TRUST_HIGH, TRUST_UNDEFINED, TRUST_ADAPTS = columns(13)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + L2).to(COMPUTE), tl.load(k + SHRINK).to(COMPUTE), tl.load(k + B1).to(COMPUTE),
        tl.load(k + A1).to(COMPUTE), tl.load(k + B2).to(COMPUTE), tl.load(k + A2).to(COMPUTE),
        tl.load(k + LAM).to(COMPUTE), tl.load(k + LR).to(COMPUTE), tl.load(a + 0).to(COMPUTE),
        tl.load(a + 1).to(COMPUTE), tl.load(a + 2).to(COMPUTE))

@triton.jit
def apply(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, lam, lr, answer0, answer1, answer2 = k
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
    l2, shrink, b1, a1, b2, a2, lam, lr, answer0, answer1, answer2 = k
    (exp_avg,) = s
    y0 = p - shrink * unless_off(shrink, p)
    y1 = a1 * (g + l2 * unless_off(l2, p)) + b1 * exp_avg
    y2 = tl.where(y1 > 0.0, 1.0, tl.where(y1 < 0.0, -1.0, y1))
    return (y0, y2 + lam * unless_off(lam, y0))

@triton.jit
def apply_adapt_true(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, lam, lr, answer0, answer1, answer2 = k
    (exp_avg,) = s
    y0 = p - shrink * unless_off(shrink, p)
    y1 = g + l2 * unless_off(l2, p)
    y2 = a1 * y1 + b1 * exp_avg
    y3 = tl.where(y2 > 0.0, 1.0, tl.where(y2 < 0.0, -1.0, y2))
    y4 = answer0 * (answer1 * (y3 + lam * unless_off(lam, y0)))
    exp_avg_ = b2 * exp_avg + a2 * y1
    return (y0 - y4, exp_avg_)

@triton.jit
def answer_0_adapt_true(k, S, n, old, a, to):
    update_norm = root(S[-1])
    y1 = at_least(update_norm, tl.load(k + TRUST_MIN_NORM))
    y2 = tl.where(y1 == 0.0, 1.0, y1)
    weight_norm = root(S[-2])
    y4 = at_least(weight_norm, tl.load(k + TRUST_MIN_NORM))
    y5 = tl.where(y4 > 1.8446744073709552e+19, 5.960464477539063e-08, 1.0)
    y6 = tl.where(y2 * y5 < 5.960464477539063e-08, 281474976710656.0, 1.0)
    y7 = tl.where(y2 * y5 > 16777216.0, 3.552713678800501e-15, y6)
    y8 = tl.where(y2 * y5 < 2.117582368135751e-22, 7.922816251426434e+28, y7)
    y9 = tl.where(y2 * y5 > 4.722366482869645e+21, 1.262177448353619e-29, y8)
    y10 = tl.where(y2 * y5 < 7.52316384526264e-37, 4.253529586511731e+37, y9)
    y11 = tl.where(y2 * y5 > 1.329227995784916e+36, 7.52316384526264e-37, y10)
    y12 = at_least(y4 / (y2 * y11), tl.load(k + TRUST_LOW) / y11)
    y13 = tl.where((y4 != 0.0) & (y1 != 0.0), at_most(y12, tl.load(k + TRUST_HIGH) / y11),
        tl.load(k + TRUST_UNDEFINED) / y11)
    y14 = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0 / y11, y13)
    trust_ratio = y14 * y11
    tl.store(a + 0, tl.load(k + LR) * y14)
    tl.store(a + 1, y11)
    tl.store(to + 0, weight_norm)
    tl.store(to + 1, update_norm)
    tl.store(to + 2, trust_ratio)

@triton.jit
def terms_0_caution_true(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, lam, lr, answer0, answer1, answer2 = k
    (exp_avg,) = s
    y0 = g + l2 * unless_off(l2, p)
    y1 = a1 * y0 + b1 * exp_avg
    y2 = tl.where(y1 > 0.0, 1.0, tl.where(y1 < 0.0, -1.0, y1))
    y3 = ((y2 > 0.0) & (y0 > 0.0)) | ((y2 < 0.0) & (y0 < 0.0))
    return (tl.where(y3, 1.0, 0.0 * y2),)

@triton.jit
def apply_caution_true(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, lam, lr, answer0, answer1, answer2 = k
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
    l2, shrink, b1, a1, b2, a2, lam, lr, answer0, answer1, answer2 = k
    (exp_avg,) = s
    y0 = p - shrink * unless_off(shrink, p)
    y1 = g + l2 * unless_off(l2, p)
    y2 = a1 * y1 + b1 * exp_avg
    y3 = tl.where(y2 > 0.0, 1.0, tl.where(y2 < 0.0, -1.0, y2))
    y4 = ((y3 > 0.0) & (y1 > 0.0)) | ((y3 < 0.0) & (y1 < 0.0))
    return (y0, y3 * tl.where(y4, 1.0, 0.0 * y3) / answer0 + lam * unless_off(lam, y0))

@triton.jit
def apply_caution_true_adapt_true(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, lam, lr, answer0, answer1, answer2 = k
    (exp_avg,) = s
    x1 = x[1]
    exp_avg_ = b2 * exp_avg + a2 * (g + l2 * unless_off(l2, p))
    return (p - shrink * unless_off(shrink, p) - answer1 * (answer2 * x1), exp_avg_)

@triton.jit
def answer_0_caution_true_adapt_true(k, S, n, old, a, to):
    mean0 = S[-1] / n
    tl.store(a + 0, at_least(mean0, 0.001))
    tl.store(to + 3, mean0)

@triton.jit
def answer_1_caution_true_adapt_true(k, S, n, old, a, to):
    update_norm = root(S[-1])
    y1 = at_least(update_norm, tl.load(k + TRUST_MIN_NORM))
    y2 = tl.where(y1 == 0.0, 1.0, y1)
    weight_norm = root(S[-2])
    y4 = at_least(weight_norm, tl.load(k + TRUST_MIN_NORM))
    y5 = tl.where(y4 > 1.8446744073709552e+19, 5.960464477539063e-08, 1.0)
    y6 = tl.where(y2 * y5 < 5.960464477539063e-08, 281474976710656.0, 1.0)
    y7 = tl.where(y2 * y5 > 16777216.0, 3.552713678800501e-15, y6)
    y8 = tl.where(y2 * y5 < 2.117582368135751e-22, 7.922816251426434e+28, y7)
    y9 = tl.where(y2 * y5 > 4.722366482869645e+21, 1.262177448353619e-29, y8)
    y10 = tl.where(y2 * y5 < 7.52316384526264e-37, 4.253529586511731e+37, y9)
    y11 = tl.where(y2 * y5 > 1.329227995784916e+36, 7.52316384526264e-37, y10)
    y12 = at_least(y4 / (y2 * y11), tl.load(k + TRUST_LOW) / y11)
    y13 = tl.where((y4 != 0.0) & (y1 != 0.0), at_most(y12, tl.load(k + TRUST_HIGH) / y11),
        tl.load(k + TRUST_UNDEFINED) / y11)
    y14 = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0 / y11, y13)
    trust_ratio = y14 * y11
    tl.store(a + 1, tl.load(k + LR) * y14)
    tl.store(a + 2, y11)
    tl.store(to + 0, weight_norm)
    tl.store(to + 1, update_norm)
    tl.store(to + 2, trust_ratio)

PROGRAMS = {
    "Lion": PrintedFunctions(values, apply=apply, answers=(answer_0,)),
    "LionAdaptTrue": PrintedFunctions(values, terms=(terms_0_adapt_true,), apply=apply_adapt_true,
        answers=(answer_0_adapt_true,)),
    "LionCautionTrue": PrintedFunctions(values, terms=(terms_0_caution_true,), apply=apply_caution_true,
        answers=(answer_0_caution_true,)),
    "LionCautionTrueAdaptTrue": PrintedFunctions(values, terms=(terms_0_caution_true, terms_1_caution_true_adapt_true),
        apply=apply_caution_true_adapt_true, answers=(answer_0_caution_true_adapt_true,
        answer_1_caution_true_adapt_true)),
}
