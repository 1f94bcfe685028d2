"""The programs of Lans, as device functions.

Printed from rules/lans.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import Functions
from layerwise.engines.gpu.kernels.parts import at_least, at_most, root, unless_off
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
        tl.load(a + 1).to(COMPUTE), tl.load(a + 2).to(COMPUTE))

@triton.jit
def keep(k, p, g, s):
    b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr_r, lr_c, answer0, answer1, answer2 = k
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
    b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr_r, lr_c, answer0, answer1, answer2 = k
    exp_avg, exp_avg_sq = s
    y0 = root(c2 * exp_avg_sq + eps_root) + eps
    y1 = lam * unless_off(lam, p)
    return (p, c1 * exp_avg / y0 + y1, g / answer0 / y0 + y1)

@triton.jit
def apply(k, p, g, s, x):
    b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr_r, lr_c, answer0, answer1, answer2 = k
    exp_avg, exp_avg_sq = s
    x1 = x[1]
    x2 = x[2]
    return (p - answer1 * x1 - answer2 * x2, exp_avg, exp_avg_sq)

@triton.jit
def answer_0(k, S, n, old, a, to):
    y0 = root(S[-1])
    tl.store(a + 0, tl.where(y0 == 0.0, 1.0, y0))

@triton.jit
def answer_1(k, S, n, old, a, to):
    weight_norm = root(S[-3])
    y1 = at_least(weight_norm, tl.load(k + TRUST_MIN_NORM))
    update_norm = root(S[-2])
    y3 = at_least(update_norm, tl.load(k + TRUST_MIN_NORM))
    y4 = at_most(y1, tl.load(k + MAX_NORM))
    y5 = at_least(y4 / tl.where(y3 == 0.0, 1.0, y3), tl.load(k + TRUST_LOW))
    y6 = tl.where((y1 != 0.0) & (y3 != 0.0), at_most(y5, tl.load(k + TRUST_HIGH)), tl.load(k + TRUST_UNDEFINED))
    trust_ratio = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, y6)
    y8 = at_least(root(S[-1]), tl.load(k + TRUST_MIN_NORM))
    y9 = at_least(y4 / tl.where(y8 == 0.0, 1.0, y8), tl.load(k + TRUST_LOW))
    y10 = tl.where((y1 != 0.0) & (y8 != 0.0), at_most(y9, tl.load(k + TRUST_HIGH)), tl.load(k + TRUST_UNDEFINED))
    y11 = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, y10)
    tl.store(a + 1, tl.load(k + LR_R) * trust_ratio)
    tl.store(a + 2, tl.load(k + LR_C) * y11)
    tl.store(to + 0, weight_norm)
    tl.store(to + 1, update_norm)
    tl.store(to + 2, trust_ratio)

@triton.jit
def apply_adapt_false(k, p, g, s, x):
    b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr_r, lr_c, answer0, answer1, answer2 = k
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
    "Lans": Functions(values, keep=keep, terms=(terms_0, terms_1), apply=apply, answers=(answer_0, answer_1)),
    "LansAdaptFalse": Functions(values, terms=(terms_0,), apply=apply_adapt_false, answers=(answer_0_adapt_false,)),
}
