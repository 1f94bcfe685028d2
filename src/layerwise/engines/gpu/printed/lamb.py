"""The programs of Lamb, as device functions.

Printed from rules/lamb.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import PrintedFunctions
from layerwise.engines.gpu.kernels.common import at_least, at_most, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns

# The numbers that are known before a tensor is read.
(L2, SHRINK, B1, A1, B2, A2, C1, C2, EPS_ROOT, EPS, LAM, LR, MAX_NORM, TRUST_EPS, TRUST_MIN_NORM, TRUST_LOW,
    TRUST_HIGH, TRUST_UNDEFINED, TRUST_ADAPTS
) = columns(19)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + L2).to(COMPUTE), tl.load(k + SHRINK).to(COMPUTE), tl.load(k + B1).to(COMPUTE),
        tl.load(k + A1).to(COMPUTE), tl.load(k + B2).to(COMPUTE), tl.load(k + A2).to(COMPUTE),
        tl.load(k + C1).to(COMPUTE), tl.load(k + C2).to(COMPUTE), tl.load(k + EPS_ROOT).to(COMPUTE),
        tl.load(k + EPS).to(COMPUTE), tl.load(k + LAM).to(COMPUTE), tl.load(k + LR).to(COMPUTE),
        tl.load(a + 0).to(COMPUTE), tl.load(a + 1).to(COMPUTE), tl.load(a + 2).to(COMPUTE), tl.load(a + 3).to(COMPUTE),
        tl.load(a + 4).to(COMPUTE), tl.load(a + 5).to(COMPUTE))

@triton.jit
def keep(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4, answer5 = k
    exp_avg, exp_avg_sq = s
    y0 = g + l2 * unless_off(l2, p)
    exp_avg_ = b1 * exp_avg + a1 * y0
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0)
    return (exp_avg_, exp_avg_sq_)

@triton.jit
def terms_0(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4, answer5 = k
    exp_avg, exp_avg_sq = s
    y0 = p - shrink * unless_off(shrink, p)
    y1 = exp_avg / (eps + c1 * root(c2 * exp_avg_sq + eps_root))
    return (y0, y1 + lam * unless_off(lam, y0))

@triton.jit
def apply(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4, answer5 = k
    exp_avg, exp_avg_sq = s
    x1 = x[1]
    return (p - shrink * unless_off(shrink, p) - answer0 * (answer1 * x1), exp_avg, exp_avg_sq)

@triton.jit
def answer_0(k, S, n, old, a, to):
    update_norm = root(S[-1])
    y1 = at_least(update_norm, tl.load(k + TRUST_MIN_NORM))
    y2 = tl.where(y1 == 0.0, 1.0, y1) + tl.load(k + TRUST_EPS)
    weight_norm = root(S[-2])
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
    trust_ratio = y15 * y12
    tl.store(a + 0, tl.load(k + LR) * y15)
    tl.store(a + 1, y12)
    tl.store(to + 0, weight_norm)
    tl.store(to + 1, update_norm)
    tl.store(to + 2, trust_ratio)

@triton.jit
def apply_adapt_false(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4, answer5 = k
    exp_avg, exp_avg_sq = s
    y0 = p - shrink * unless_off(shrink, p)
    y1 = g + l2 * unless_off(l2, p)
    exp_avg_ = b1 * exp_avg + a1 * y1
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y1 * y1)
    y4 = exp_avg_ / (eps + c1 * root(c2 * exp_avg_sq_ + eps_root))
    return (y0 - lr * (y4 + lam * unless_off(lam, y0)), exp_avg_, exp_avg_sq_)

@triton.jit
def answer_0_adapt_false(k, S, n, old, a, to):
    tl.store(to + 0, 1.0)

@triton.jit
def terms_0_caution_true(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4, answer5 = k
    exp_avg, exp_avg_sq = s
    y0 = exp_avg / (eps + c1 * root(c2 * exp_avg_sq + eps_root))
    y1 = g + l2 * unless_off(l2, p)
    y2 = ((y0 > 0.0) & (y1 > 0.0)) | ((y0 < 0.0) & (y1 < 0.0))
    return (tl.where(y2, 1.0, 0.0 * y0),)

@triton.jit
def terms_1_caution_true(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4, answer5 = k
    exp_avg, exp_avg_sq = s
    y0 = p - shrink * unless_off(shrink, p)
    y1 = exp_avg / (eps + c1 * root(c2 * exp_avg_sq + eps_root))
    y2 = g + l2 * unless_off(l2, p)
    y3 = ((y1 > 0.0) & (y2 > 0.0)) | ((y1 < 0.0) & (y2 < 0.0))
    return (y0, y1 * tl.where(y3, 1.0, 0.0 * y1) / answer0 + lam * unless_off(lam, y0))

@triton.jit
def apply_caution_true(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4, answer5 = k
    exp_avg, exp_avg_sq = s
    x1 = x[1]
    return (p - shrink * unless_off(shrink, p) - answer1 * (answer2 * x1), exp_avg, exp_avg_sq)

@triton.jit
def answer_0_caution_true(k, S, n, old, a, to):
    mean0 = S[-1] / n
    tl.store(a + 0, at_least(mean0, 0.001))
    tl.store(to + 3, mean0)

@triton.jit
def answer_1_caution_true(k, S, n, old, a, to):
    update_norm = root(S[-1])
    y1 = at_least(update_norm, tl.load(k + TRUST_MIN_NORM))
    y2 = tl.where(y1 == 0.0, 1.0, y1) + tl.load(k + TRUST_EPS)
    weight_norm = root(S[-2])
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
    trust_ratio = y15 * y12
    tl.store(a + 1, tl.load(k + LR) * y15)
    tl.store(a + 2, y12)
    tl.store(to + 0, weight_norm)
    tl.store(to + 1, update_norm)
    tl.store(to + 2, trust_ratio)

@triton.jit
def apply_caution_true_adapt_false(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4, answer5 = k
    exp_avg, exp_avg_sq = s
    x0 = x[0]
    y0 = p - shrink * unless_off(shrink, p)
    y1 = exp_avg / (eps + c1 * root(c2 * exp_avg_sq + eps_root))
    y2 = lr * (y1 * x0 / answer0 + lam * unless_off(lam, y0))
    return (y0 - y2, exp_avg, exp_avg_sq)

@triton.jit
def answer_0_caution_true_adapt_false(k, S, n, old, a, to):
    mean0 = S[-1] / n
    tl.store(a + 0, at_least(mean0, 0.001))
    tl.store(to + 0, 1.0)
    tl.store(to + 1, mean0)

@triton.jit
def terms_1_keep_norm_true(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4, answer5 = k
    exp_avg, exp_avg_sq = s
    y0 = p - shrink * unless_off(shrink, p)
    y1 = exp_avg / (eps + c1 * root(c2 * exp_avg_sq + eps_root))
    y2 = answer1 * (answer2 * (y1 + lam * unless_off(lam, y0)))
    return (y0 + answer0 * y0 - y2,)

@triton.jit
def apply_keep_norm_true(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4, answer5 = k
    exp_avg, exp_avg_sq = s
    x0 = x[0]
    y0 = p - shrink * unless_off(shrink, p)
    y1 = exp_avg / (eps + c1 * root(c2 * exp_avg_sq + eps_root))
    y2 = answer4 * (answer2 * (y1 + lam * unless_off(lam, y0)))
    return (p + answer3 * y0 - y2 + answer5 * x0, exp_avg, exp_avg_sq)

@triton.jit
def answer_0_keep_norm_true(k, S, n, old, a, to):
    weight_norm = root(S[-2])
    update_norm = root(S[-1])
    y2 = at_least(update_norm, tl.load(k + TRUST_MIN_NORM))
    y3 = tl.where(y2 == 0.0, 1.0, y2) + tl.load(k + TRUST_EPS)
    y4 = at_least(weight_norm, tl.load(k + TRUST_MIN_NORM))
    y5 = at_most(y4, tl.load(k + MAX_NORM))
    y6 = tl.where(y5 > 1.8446744073709552e+19, 5.960464477539063e-08, 1.0)
    y7 = tl.where(y3 * y6 < 5.960464477539063e-08, 281474976710656.0, 1.0)
    y8 = tl.where(y3 * y6 > 16777216.0, 3.552713678800501e-15, y7)
    y9 = tl.where(y3 * y6 < 2.117582368135751e-22, 7.922816251426434e+28, y8)
    y10 = tl.where(y3 * y6 > 4.722366482869645e+21, 1.262177448353619e-29, y9)
    y11 = tl.where(y3 * y6 < 7.52316384526264e-37, 4.253529586511731e+37, y10)
    y12 = tl.where(y3 * y6 > 1.329227995784916e+36, 7.52316384526264e-37, y11)
    y13 = at_least(y5 / (y3 * y12), tl.load(k + TRUST_LOW) / y12)
    y14 = tl.where((y4 != 0.0) & (y2 != 0.0), at_most(y13, tl.load(k + TRUST_HIGH) / y12),
        tl.load(k + TRUST_UNDEFINED) / y12)
    y15 = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0 / y12, y14)
    y16 = at_least(weight_norm, tl.load(k + LR) * y15 * (y12 * update_norm))
    y17 = (weight_norm > 0.0) & (y16 > 0.0)
    y18 = (weight_norm - tl.where(y17, y16, 1.0)) / tl.where(y17, y16, 1.0)
    y19 = tl.where(y17, weight_norm / tl.where(y17, y16, 1.0), 1.0)
    trust_ratio = y15 * y12
    tl.store(a + 0, tl.where(y17, y18, 0.0))
    tl.store(a + 1, tl.load(k + LR) * y15 * y19)
    tl.store(a + 2, y12)
    tl.store(to + 0, weight_norm)
    tl.store(to + 1, update_norm)
    tl.store(to + 2, trust_ratio)

@triton.jit
def answer_1_keep_norm_true(k, S, n, old, a, to):
    y0 = root(S[-1])
    weight_norm = root(S[-3])
    y2 = (y0 == 0.0) & (weight_norm > 0.0)
    y3 = (weight_norm > 0.0) & (y0 > 0.0)
    y4 = (weight_norm - tl.where(y3, y0, 1.0)) / tl.where(y3, y0, 1.0)
    tl.store(a + 3, tl.where(y2, 0.0, tl.load(a + 0)))
    tl.store(a + 4, tl.where(y2, 0.0, tl.load(a + 1)))
    tl.store(a + 5, tl.where(y3, y4, 0.0))

@triton.jit
def answer_0_with_norm_keep_norm_first(k, S, n, old, a, to):
    weight_norm = root(S[-2])
    norm = tl.where(old[0] == 0.0, weight_norm, old[0])
    update_norm = root(S[-1])
    y3 = at_least(update_norm, tl.load(k + TRUST_MIN_NORM))
    y4 = tl.where(y3 == 0.0, 1.0, y3) + tl.load(k + TRUST_EPS)
    y5 = at_least(weight_norm, tl.load(k + TRUST_MIN_NORM))
    y6 = at_most(y5, tl.load(k + MAX_NORM))
    y7 = tl.where(y6 > 1.8446744073709552e+19, 5.960464477539063e-08, 1.0)
    y8 = tl.where(y4 * y7 < 5.960464477539063e-08, 281474976710656.0, 1.0)
    y9 = tl.where(y4 * y7 > 16777216.0, 3.552713678800501e-15, y8)
    y10 = tl.where(y4 * y7 < 2.117582368135751e-22, 7.922816251426434e+28, y9)
    y11 = tl.where(y4 * y7 > 4.722366482869645e+21, 1.262177448353619e-29, y10)
    y12 = tl.where(y4 * y7 < 7.52316384526264e-37, 4.253529586511731e+37, y11)
    y13 = tl.where(y4 * y7 > 1.329227995784916e+36, 7.52316384526264e-37, y12)
    y14 = at_least(y6 / (y4 * y13), tl.load(k + TRUST_LOW) / y13)
    y15 = tl.where((y5 != 0.0) & (y3 != 0.0), at_most(y14, tl.load(k + TRUST_HIGH) / y13),
        tl.load(k + TRUST_UNDEFINED) / y13)
    y16 = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0 / y13, y15)
    y17 = at_least(weight_norm, tl.load(k + LR) * y16 * (y13 * update_norm))
    y18 = (norm > 0.0) & (y17 > 0.0)
    y19 = (norm - tl.where(y18, y17, 1.0)) / tl.where(y18, y17, 1.0)
    y20 = tl.where(y18, norm / tl.where(y18, y17, 1.0), 1.0)
    trust_ratio = y16 * y13
    tl.store(a + 0, tl.where(y18, y19, 0.0))
    tl.store(a + 1, tl.load(k + LR) * y16 * y20)
    tl.store(a + 2, y13)
    tl.store(to + 0, weight_norm)
    tl.store(to + 1, update_norm)
    tl.store(to + 2, trust_ratio)

@triton.jit
def answer_1_with_norm_keep_norm_first(k, S, n, old, a, to):
    y0 = root(S[-1])
    weight_norm = root(S[-3])
    y2 = (y0 == 0.0) & (weight_norm > 0.0)
    norm = tl.where(old[0] == 0.0, weight_norm, old[0])
    y4 = (norm > 0.0) & (weight_norm > 0.0)
    y5 = (norm - tl.where(y4, weight_norm, 1.0)) / tl.where(y4, weight_norm, 1.0)
    y6 = (norm > 0.0) & (y0 > 0.0)
    y7 = (norm - tl.where(y6, y0, 1.0)) / tl.where(y6, y0, 1.0)
    tl.store(a + 3, tl.where(y2, tl.where(y4, y5, 0.0), tl.load(a + 0)))
    tl.store(a + 4, tl.where(y2, 0.0, tl.load(a + 1)))
    tl.store(a + 5, tl.where(y6, y7, 0.0))

@triton.jit
def remember_with_norm_keep_norm_first(k, S, n, old):
    weight_norm = root(S[-3])
    norm = tl.where(old[0] == 0.0, weight_norm, old[0])
    return (norm,)

PROGRAMS = {
    "Lamb": PrintedFunctions(values, keep=keep, terms=(terms_0,), apply=apply, answers=(answer_0,)),
    "LambAdaptFalse": PrintedFunctions(values, apply=apply_adapt_false, answers=(answer_0_adapt_false,)),
    "LambCautionTrue": PrintedFunctions(values, keep=keep, terms=(terms_0_caution_true, terms_1_caution_true),
        apply=apply_caution_true, answers=(answer_0_caution_true, answer_1_caution_true)),
    "LambCautionTrueAdaptFalse": PrintedFunctions(values, keep=keep, terms=(terms_0_caution_true,),
        apply=apply_caution_true_adapt_false, answers=(answer_0_caution_true_adapt_false,)),
    "LambKeepNormTrue": PrintedFunctions(values, keep=keep, terms=(terms_0, terms_1_keep_norm_true),
        apply=apply_keep_norm_true, answers=(answer_0_keep_norm_true, answer_1_keep_norm_true)),
    "LambWithNormKeepNormFirst": PrintedFunctions(values, keep=keep, terms=(terms_0, terms_1_keep_norm_true),
        apply=apply_keep_norm_true, answers=(answer_0_with_norm_keep_norm_first, answer_1_with_norm_keep_norm_first),
        remember=remember_with_norm_keep_norm_first),
}
