"""The programs of Lans, as device functions.

Printed from rules/lans.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import PrintedFunctions
from layerwise.engines.gpu.kernels.common import at_least, at_most, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns

# The numbers that are known before a tensor is read.
(B1, A1, B2, A2, C1, C2, EPS_ROOT, EPS, LAM, LR_R, LR_C, MAX_NORM, TRUST_MIN_NORM, TRUST_LOW, TRUST_HIGH,
    TRUST_UNDEFINED, TRUST_ADAPTS
) = columns(17)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + B1).to(COMPUTE), tl.load(k + A1).to(COMPUTE), tl.load(k + B2).to(COMPUTE),
        tl.load(k + A2).to(COMPUTE), tl.load(k + C1).to(COMPUTE), tl.load(k + C2).to(COMPUTE),
        tl.load(k + EPS_ROOT).to(COMPUTE), tl.load(k + EPS).to(COMPUTE), tl.load(k + LAM).to(COMPUTE),
        tl.load(k + LR_R).to(COMPUTE), tl.load(k + LR_C).to(COMPUTE), tl.load(a + 0).to(COMPUTE),
        tl.load(a + 1).to(COMPUTE), tl.load(a + 2).to(COMPUTE), tl.load(a + 3).to(COMPUTE), tl.load(a + 4).to(COMPUTE))

@triton.jit
def keep(k, p, g, s):
    b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr_r, lr_c, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg, exp_avg_sq = s
    y0 = g / answer0
    exp_avg_ = b1 * exp_avg + a1 * y0
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0)
    return (exp_avg_, exp_avg_sq_)

@triton.jit
def terms_0(k, p, g, s):
    return (g,)

@triton.jit
def terms_1(k, p, g, s):
    b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr_r, lr_c, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg, exp_avg_sq = s
    y0 = root(c2 * exp_avg_sq + eps_root) + eps
    y1 = lam * unless_off(lam, p)
    return (p, c1 * exp_avg / y0 + y1, g / answer0 / y0 + y1)

@triton.jit
def apply(k, p, g, s, x):
    b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr_r, lr_c, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg, exp_avg_sq = s
    x1 = x[1]
    x2 = x[2]
    return (p - answer1 * (answer2 * x1) - answer3 * (answer4 * x2), exp_avg, exp_avg_sq)

@triton.jit
def answer_0(k, S, n, old, a, to):
    y0 = root(S[-1])
    tl.store(a + 0, tl.where(y0 == 0.0, 1.0, y0))

@triton.jit
def answer_1(k, S, n, old, a, to):
    update_norm = root(S[-2])
    y1 = at_least(update_norm, tl.load(k + TRUST_MIN_NORM))
    y2 = tl.where(y1 == 0.0, 1.0, y1)
    weight_norm = root(S[-3])
    y4 = at_least(weight_norm, tl.load(k + TRUST_MIN_NORM))
    y5 = at_most(y4, tl.load(k + MAX_NORM))
    y6 = tl.where(y5 > 1.8446744073709552e+19, 5.960464477539063e-08, 1.0)
    y7 = tl.where(y2 * y6 < 5.960464477539063e-08, 281474976710656.0, 1.0)
    y8 = tl.where(y2 * y6 > 16777216.0, 3.552713678800501e-15, y7)
    y9 = tl.where(y2 * y6 < 2.117582368135751e-22, 7.922816251426434e+28, y8)
    y10 = tl.where(y2 * y6 > 4.722366482869645e+21, 1.262177448353619e-29, y9)
    y11 = tl.where(y2 * y6 < 7.52316384526264e-37, 4.253529586511731e+37, y10)
    y12 = tl.where(y2 * y6 > 1.329227995784916e+36, 7.52316384526264e-37, y11)
    y13 = at_least(y5 / (y2 * y12), tl.load(k + TRUST_LOW) / y12)
    y14 = tl.where((y4 != 0.0) & (y1 != 0.0), at_most(y13, tl.load(k + TRUST_HIGH) / y12),
        tl.load(k + TRUST_UNDEFINED) / y12)
    y15 = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0 / y12, y14)
    y16 = at_least(root(S[-1]), tl.load(k + TRUST_MIN_NORM))
    y17 = tl.where(y16 == 0.0, 1.0, y16)
    y18 = tl.where(y17 * y6 < 5.960464477539063e-08, 281474976710656.0, 1.0)
    y19 = tl.where(y17 * y6 > 16777216.0, 3.552713678800501e-15, y18)
    y20 = tl.where(y17 * y6 < 2.117582368135751e-22, 7.922816251426434e+28, y19)
    y21 = tl.where(y17 * y6 > 4.722366482869645e+21, 1.262177448353619e-29, y20)
    y22 = tl.where(y17 * y6 < 7.52316384526264e-37, 4.253529586511731e+37, y21)
    y23 = tl.where(y17 * y6 > 1.329227995784916e+36, 7.52316384526264e-37, y22)
    y24 = at_least(y5 / (y17 * y23), tl.load(k + TRUST_LOW) / y23)
    y25 = tl.where((y4 != 0.0) & (y16 != 0.0), at_most(y24, tl.load(k + TRUST_HIGH) / y23),
        tl.load(k + TRUST_UNDEFINED) / y23)
    y26 = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0 / y23, y25)
    trust_ratio = y15 * y12
    tl.store(a + 1, tl.load(k + LR_R) * y15)
    tl.store(a + 2, y12)
    tl.store(a + 3, tl.load(k + LR_C) * y26)
    tl.store(a + 4, y23)
    tl.store(to + 0, weight_norm)
    tl.store(to + 1, update_norm)
    tl.store(to + 2, trust_ratio)

@triton.jit
def apply_adapt_false(k, p, g, s, x):
    b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr_r, lr_c, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg, exp_avg_sq = s
    y0 = g / answer0
    exp_avg_ = b1 * exp_avg + a1 * y0
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0)
    y3 = root(c2 * exp_avg_sq_ + eps_root) + eps
    y4 = lam * unless_off(lam, p)
    return (p - lr_r * (c1 * exp_avg_ / y3 + y4) - lr_c * (y0 / y3 + y4), exp_avg_, exp_avg_sq_)

@triton.jit
def answer_0_adapt_false(k, S, n, old, a, to):
    y0 = root(S[-1])
    tl.store(a + 0, tl.where(y0 == 0.0, 1.0, y0))
    tl.store(to + 0, 1.0)

PROGRAMS = {
    "Lans": PrintedFunctions(values, keep=keep, terms=(terms_0, terms_1), apply=apply, answers=(answer_0, answer_1)),
    "LansAdaptFalse": PrintedFunctions(values, terms=(terms_0,), apply=apply_adapt_false,
        answers=(answer_0_adapt_false,)),
}
