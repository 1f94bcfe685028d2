"""The programs of Lars, as device functions.

Printed from rules/lars.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import PrintedFunctions
from layerwise.engines.gpu.kernels.common import at_least, at_most, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns

# The numbers that are known before a tensor is read.
(L2, LAM, LAM_X, LAM_W, ETA, EPS, UNIT, LR, DAMPED, MU, PACE, WHOLE, TRUST_MIN_NORM, TRUST_LOW, TRUST_HIGH,
    TRUST_UNDEFINED, TRUST_ADAPTS
) = columns(17)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + L2).to(COMPUTE), tl.load(k + LAM).to(COMPUTE), tl.load(k + LAM_X).to(COMPUTE),
        tl.load(k + LR).to(COMPUTE), tl.load(k + DAMPED).to(COMPUTE), tl.load(k + MU).to(COMPUTE),
        tl.load(k + PACE).to(COMPUTE), tl.load(a + 0).to(COMPUTE), tl.load(a + 1).to(COMPUTE))

@triton.jit
def terms_0(k, p, g, s):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1 = k
    return (p, g + l2 * unless_off(l2, p) + lam_x * unless_off(lam_x, p))

@triton.jit
def apply(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    momentum_buffer_ = damped * (answer0 * (answer1 * y0)) + mu * momentum_buffer
    return (p - pace * momentum_buffer_, momentum_buffer_)

@triton.jit
def answer_0(k, S, n, old, a, to):
    update_norm = root(S[-1])
    y1 = at_least(update_norm, tl.load(k + TRUST_MIN_NORM))
    weight_norm = root(S[-2])
    y3 = at_least(weight_norm, tl.load(k + TRUST_MIN_NORM))
    y4 = tl.load(k + LAM_W) * unless_off(tl.load(k + LAM_W), y3)
    y5 = tl.where(y1 == 0.0, 1.0, y1 + y4 + tl.load(k + EPS))
    y6 = tl.where(tl.load(k + ETA) * y3 > 1.8446744073709552e+19, 5.960464477539063e-08, 1.0)
    y7 = tl.where(y5 * y6 < 5.960464477539063e-08, 281474976710656.0, 1.0)
    y8 = tl.where(y5 * y6 > 16777216.0, 3.552713678800501e-15, y7)
    y9 = tl.where(y5 * y6 < 2.117582368135751e-22, 7.922816251426434e+28, y8)
    y10 = tl.where(y5 * y6 > 4.722366482869645e+21, 1.262177448353619e-29, y9)
    y11 = tl.where(y5 * y6 < 7.52316384526264e-37, 4.253529586511731e+37, y10)
    y12 = tl.where(y5 * y6 > 1.329227995784916e+36, 7.52316384526264e-37, y11)
    y13 = tl.load(k + ETA) * y3 / (y5 * y12) / tl.load(k + UNIT)
    y14 = at_most(at_least(y13, tl.load(k + TRUST_LOW) / y12), tl.load(k + TRUST_HIGH) / y12)
    y15 = tl.where((y3 != 0.0) & (y1 != 0.0), y14, tl.load(k + TRUST_UNDEFINED) / y12)
    y16 = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0 / y12, y15)
    trust_ratio = y16 * y12
    tl.store(a + 0, tl.load(k + LR) * y16)
    tl.store(a + 1, y12)
    tl.store(to + 0, weight_norm)
    tl.store(to + 1, update_norm)
    tl.store(to + 2, trust_ratio)

@triton.jit
def apply_nesterov_true(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    y1 = answer0 * (answer1 * y0)
    momentum_buffer_ = damped * y1 + mu * momentum_buffer
    return (p - pace * (y1 + mu * momentum_buffer_), momentum_buffer_)

@triton.jit
def apply_adapt_false(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    momentum_buffer_ = damped * (lr * y0) + mu * momentum_buffer
    return (p - pace * momentum_buffer_, momentum_buffer_)

@triton.jit
def answer_0_adapt_false(k, S, n, old, a, to):
    tl.store(to + 0, 1.0)

@triton.jit
def apply_adapt_false_nesterov_true(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    momentum_buffer_ = damped * (lr * y0) + mu * momentum_buffer
    return (p - pace * (lr * y0 + mu * momentum_buffer_), momentum_buffer_)

@triton.jit
def apply_without_momentum_buffer(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1 = k
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    return (p - pace * (answer0 * (answer1 * y0)),)

@triton.jit
def apply_without_momentum_buffer_adapt_false(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1 = k
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    return (p - pace * (lr * y0),)

PROGRAMS = {
    "Lars": PrintedFunctions(values, terms=(terms_0,), apply=apply, answers=(answer_0,)),
    "LarsNesterovTrue": PrintedFunctions(values, terms=(terms_0,), apply=apply_nesterov_true, answers=(answer_0,)),
    "LarsAdaptFalse": PrintedFunctions(values, apply=apply_adapt_false, answers=(answer_0_adapt_false,)),
    "LarsAdaptFalseNesterovTrue": PrintedFunctions(values, apply=apply_adapt_false_nesterov_true,
        answers=(answer_0_adapt_false,)),
    "LarsWithoutMomentumBuffer": PrintedFunctions(values, terms=(terms_0,), apply=apply_without_momentum_buffer,
        answers=(answer_0,)),
    "LarsWithoutMomentumBufferAdaptFalse": PrintedFunctions(values, apply=apply_without_momentum_buffer_adapt_false,
        answers=(answer_0_adapt_false,)),
}
