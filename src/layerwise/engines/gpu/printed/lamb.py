"""The programs of Lamb, as device functions.

Printed from rules/lamb.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import Functions
from layerwise.engines.gpu.kernels.parts import at_least, at_most, root, unless_off
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
        tl.load(a + 4).to(COMPUTE))

@triton.jit
def keep(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg, exp_avg_sq = s
    y0 = g + l2 * unless_off(l2, p)
    exp_avg_ = b1 * exp_avg + a1 * y0
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0)
    return (exp_avg_, exp_avg_sq_)

@triton.jit
def terms_0(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg, exp_avg_sq = s
    y0 = p - shrink * unless_off(shrink, p)
    y1 = exp_avg / (eps + c1 * root(c2 * exp_avg_sq + eps_root))
    return (y0, y1 + lam * unless_off(lam, y0))

@triton.jit
def apply(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg, exp_avg_sq = s
    x1 = x[1]
    return (p - shrink * unless_off(shrink, p) - answer0 * x1, exp_avg, exp_avg_sq)

@triton.jit
def answer_0(k, S, n, old, a, to):
    weight_norm = root(S[-2])
    y1 = at_least(weight_norm, tl.load(k + TRUST_MIN_NORM))
    update_norm = root(S[-1])
    y3 = at_least(update_norm, tl.load(k + TRUST_MIN_NORM))
    y4 = tl.where(y3 == 0.0, 1.0, y3) + tl.load(k + TRUST_EPS)
    y5 = at_least(at_most(y1, tl.load(k + MAX_NORM)) / y4, tl.load(k + TRUST_LOW))
    y6 = tl.where((y1 != 0.0) & (y3 != 0.0), at_most(y5, tl.load(k + TRUST_HIGH)), tl.load(k + TRUST_UNDEFINED))
    trust_ratio = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, y6)
    tl.store(a + 0, tl.load(k + LR) * trust_ratio)
    tl.store(to + 0, weight_norm)
    tl.store(to + 1, update_norm)
    tl.store(to + 2, trust_ratio)

@triton.jit
def apply_adapt_false(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4 = k
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
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg, exp_avg_sq = s
    y0 = exp_avg / (eps + c1 * root(c2 * exp_avg_sq + eps_root))
    y1 = g + l2 * unless_off(l2, p)
    y2 = ((y0 > 0.0) & (y1 > 0.0)) | ((y0 < 0.0) & (y1 < 0.0))
    return (tl.where(y2, 1.0, 0.0 * y0),)

@triton.jit
def terms_1_caution_true(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg, exp_avg_sq = s
    y0 = p - shrink * unless_off(shrink, p)
    y1 = exp_avg / (eps + c1 * root(c2 * exp_avg_sq + eps_root))
    y2 = g + l2 * unless_off(l2, p)
    y3 = ((y1 > 0.0) & (y2 > 0.0)) | ((y1 < 0.0) & (y2 < 0.0))
    return (y0, y1 * tl.where(y3, 1.0, 0.0 * y1) / answer0 + lam * unless_off(lam, y0))

@triton.jit
def apply_caution_true(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg, exp_avg_sq = s
    x1 = x[1]
    return (p - shrink * unless_off(shrink, p) - answer1 * x1, exp_avg, exp_avg_sq)

@triton.jit
def answer_0_caution_true(k, S, n, old, a, to):
    mean0 = S[-1] / n
    tl.store(a + 0, at_least(mean0, 0.001))
    tl.store(to + 3, mean0)

@triton.jit
def answer_1_caution_true(k, S, n, old, a, to):
    weight_norm = root(S[-2])
    y1 = at_least(weight_norm, tl.load(k + TRUST_MIN_NORM))
    update_norm = root(S[-1])
    y3 = at_least(update_norm, tl.load(k + TRUST_MIN_NORM))
    y4 = tl.where(y3 == 0.0, 1.0, y3) + tl.load(k + TRUST_EPS)
    y5 = at_least(at_most(y1, tl.load(k + MAX_NORM)) / y4, tl.load(k + TRUST_LOW))
    y6 = tl.where((y1 != 0.0) & (y3 != 0.0), at_most(y5, tl.load(k + TRUST_HIGH)), tl.load(k + TRUST_UNDEFINED))
    trust_ratio = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, y6)
    tl.store(a + 1, tl.load(k + LR) * trust_ratio)
    tl.store(to + 0, weight_norm)
    tl.store(to + 1, update_norm)
    tl.store(to + 2, trust_ratio)

@triton.jit
def apply_caution_true_adapt_false(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4 = k
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
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg, exp_avg_sq = s
    y0 = p - shrink * unless_off(shrink, p)
    y1 = exp_avg / (eps + c1 * root(c2 * exp_avg_sq + eps_root))
    return (y0 + answer0 * y0 - answer1 * (y1 + lam * unless_off(lam, y0)),)

@triton.jit
def apply_keep_norm_true(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg, exp_avg_sq = s
    x0 = x[0]
    y0 = p - shrink * unless_off(shrink, p)
    y1 = exp_avg / (eps + c1 * root(c2 * exp_avg_sq + eps_root))
    y2 = p + answer2 * y0 - answer3 * (y1 + lam * unless_off(lam, y0))
    return (y2 + answer4 * x0, exp_avg, exp_avg_sq)

@triton.jit
def answer_0_keep_norm_true(k, S, n, old, a, to):
    weight_norm = root(S[-2])
    y1 = at_least(weight_norm, tl.load(k + TRUST_MIN_NORM))
    update_norm = root(S[-1])
    y3 = at_least(update_norm, tl.load(k + TRUST_MIN_NORM))
    y4 = tl.where(y3 == 0.0, 1.0, y3) + tl.load(k + TRUST_EPS)
    y5 = at_least(at_most(y1, tl.load(k + MAX_NORM)) / y4, tl.load(k + TRUST_LOW))
    y6 = tl.where((y1 != 0.0) & (y3 != 0.0), at_most(y5, tl.load(k + TRUST_HIGH)), tl.load(k + TRUST_UNDEFINED))
    trust_ratio = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, y6)
    y8 = at_least(weight_norm, tl.load(k + LR) * trust_ratio * update_norm)
    y9 = (weight_norm > 0.0) & (y8 > 0.0)
    y10 = (weight_norm - tl.where(y9, y8, 1.0)) / tl.where(y9, y8, 1.0)
    y11 = tl.where(y9, weight_norm / tl.where(y9, y8, 1.0), 1.0)
    tl.store(a + 0, tl.where(y9, y10, 0.0))
    tl.store(a + 1, tl.load(k + LR) * trust_ratio * y11)
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
    tl.store(a + 2, tl.where(y2, 0.0, tl.load(a + 0)))
    tl.store(a + 3, tl.where(y2, 0.0, tl.load(a + 1)))
    tl.store(a + 4, tl.where(y3, y4, 0.0))

@triton.jit
def answer_0_with_norm_keep_norm_first(k, S, n, old, a, to):
    weight_norm = root(S[-2])
    norm = tl.where(old[0] == 0.0, weight_norm, old[0])
    y2 = at_least(weight_norm, tl.load(k + TRUST_MIN_NORM))
    update_norm = root(S[-1])
    y4 = at_least(update_norm, tl.load(k + TRUST_MIN_NORM))
    y5 = tl.where(y4 == 0.0, 1.0, y4) + tl.load(k + TRUST_EPS)
    y6 = at_least(at_most(y2, tl.load(k + MAX_NORM)) / y5, tl.load(k + TRUST_LOW))
    y7 = tl.where((y2 != 0.0) & (y4 != 0.0), at_most(y6, tl.load(k + TRUST_HIGH)), tl.load(k + TRUST_UNDEFINED))
    trust_ratio = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, y7)
    y9 = at_least(weight_norm, tl.load(k + LR) * trust_ratio * update_norm)
    y10 = (norm > 0.0) & (y9 > 0.0)
    y11 = (norm - tl.where(y10, y9, 1.0)) / tl.where(y10, y9, 1.0)
    y12 = tl.where(y10, norm / tl.where(y10, y9, 1.0), 1.0)
    tl.store(a + 0, tl.where(y10, y11, 0.0))
    tl.store(a + 1, tl.load(k + LR) * trust_ratio * y12)
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
    tl.store(a + 2, tl.where(y2, tl.where(y4, y5, 0.0), tl.load(a + 0)))
    tl.store(a + 3, tl.where(y2, 0.0, tl.load(a + 1)))
    tl.store(a + 4, tl.where(y6, y7, 0.0))

@triton.jit
def remember_with_norm_keep_norm_first(k, S, n, old):
    weight_norm = root(S[-3])
    norm = tl.where(old[0] == 0.0, weight_norm, old[0])
    return (norm,)

PROGRAMS = {
    "Lamb": Functions(values, keep=keep, terms=(terms_0,), apply=apply, answers=(answer_0,)),
    "LambAdaptFalse": Functions(values, apply=apply_adapt_false, answers=(answer_0_adapt_false,)),
    "LambCautionTrue": Functions(values, keep=keep, terms=(terms_0_caution_true, terms_1_caution_true),
        apply=apply_caution_true, answers=(answer_0_caution_true, answer_1_caution_true)),
    "LambCautionTrueAdaptFalse": Functions(values, keep=keep, terms=(terms_0_caution_true,),
        apply=apply_caution_true_adapt_false, answers=(answer_0_caution_true_adapt_false,)),
    "LambKeepNormTrue": Functions(values, keep=keep, terms=(terms_0, terms_1_keep_norm_true),
        apply=apply_keep_norm_true, answers=(answer_0_keep_norm_true, answer_1_keep_norm_true)),
    "LambWithNormKeepNormFirst": Functions(values, keep=keep, terms=(terms_0, terms_1_keep_norm_true),
        apply=apply_keep_norm_true, answers=(answer_0_with_norm_keep_norm_first, answer_1_with_norm_keep_norm_first),
        remember=remember_with_norm_keep_norm_first),
}
