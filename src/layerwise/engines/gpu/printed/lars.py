"""The programs of Lars, as device functions.

Printed from rules/lars.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import Functions
from layerwise.engines.gpu.kernels.parts import at_least, at_most, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns

# The numbers that are known before a tensor is read.
(L2, LAM, LAM_X, LAM_W, ETA, EPS, UNIT, LR, DAMPED, MU, PACE, WHOLE, TRUST_MIN_NORM, TRUST_LOW, TRUST_HIGH,
    TRUST_UNDEFINED, TRUST_ADAPTS
) = columns(17)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + L2).to(COMPUTE), tl.load(k + LAM).to(COMPUTE), tl.load(k + LAM_X).to(COMPUTE),
        tl.load(k + LR).to(COMPUTE), tl.load(k + DAMPED).to(COMPUTE), tl.load(k + MU).to(COMPUTE),
        tl.load(k + PACE).to(COMPUTE), tl.load(a + 0).to(COMPUTE), tl.load(a + 1).to(COMPUTE),
        tl.load(a + 2).to(COMPUTE), tl.load(a + 3).to(COMPUTE), tl.load(a + 4).to(COMPUTE), tl.load(a + 5).to(COMPUTE))

@triton.jit
def terms_0(k, p, g, s):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5 = k
    return (p, g + l2 * unless_off(l2, p) + lam_x * unless_off(lam_x, p))

@triton.jit
def apply(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    momentum_buffer_ = damped * (answer0 * y0) + mu * momentum_buffer
    return (p - pace * momentum_buffer_, momentum_buffer_)

@triton.jit
def answer_0(k, S, n, old, a, to):
    weight_norm = root(S[-2])
    y1 = at_least(weight_norm, tl.load(k + TRUST_MIN_NORM))
    update_norm = root(S[-1])
    y3 = at_least(update_norm, tl.load(k + TRUST_MIN_NORM))
    y4 = tl.load(k + LAM_W) * unless_off(tl.load(k + LAM_W), y1)
    y5 = tl.where(y3 == 0.0, 1.0, y3 + y4 + tl.load(k + EPS))
    y6 = at_least(tl.load(k + ETA) * y1 / y5 / tl.load(k + UNIT), tl.load(k + TRUST_LOW))
    y7 = tl.where((y1 != 0.0) & (y3 != 0.0), at_most(y6, tl.load(k + TRUST_HIGH)), tl.load(k + TRUST_UNDEFINED))
    trust_ratio = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, y7)
    tl.store(a + 0, tl.load(k + LR) * trust_ratio)
    tl.store(to + 0, weight_norm)
    tl.store(to + 1, update_norm)
    tl.store(to + 2, trust_ratio)

@triton.jit
def apply_nesterov_true(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    momentum_buffer_ = damped * (answer0 * y0) + mu * momentum_buffer
    return (p - pace * (answer0 * y0 + mu * momentum_buffer_), momentum_buffer_)

@triton.jit
def apply_adapt_false(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    momentum_buffer_ = damped * (lr * y0) + mu * momentum_buffer
    return (p - pace * momentum_buffer_, momentum_buffer_)

@triton.jit
def answer_0_adapt_false(k, S, n, old, a, to):
    tl.store(to + 0, 1.0)

@triton.jit
def apply_adapt_false_nesterov_true(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    momentum_buffer_ = damped * (lr * y0) + mu * momentum_buffer
    return (p - pace * (lr * y0 + mu * momentum_buffer_), momentum_buffer_)

@triton.jit
def terms_1_caution_true(k, p, g, s):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p)
    y1 = damped * (answer0 * (y0 + lam * unless_off(lam, p)))
    momentum_buffer_ = y1 + mu * momentum_buffer
    y3 = ((momentum_buffer_ > 0.0) & (y0 > 0.0)) | ((momentum_buffer_ < 0.0) & (y0 < 0.0))
    return (tl.where(y3, 1.0, 0.0 * momentum_buffer_),)

@triton.jit
def apply_caution_true(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p)
    y1 = damped * (answer0 * (y0 + lam * unless_off(lam, p)))
    momentum_buffer_ = y1 + mu * momentum_buffer
    y3 = ((momentum_buffer_ > 0.0) & (y0 > 0.0)) | ((momentum_buffer_ < 0.0) & (y0 < 0.0))
    y4 = momentum_buffer_ * tl.where(y3, 1.0, 0.0 * momentum_buffer_)
    return (p - pace * (y4 / answer1), momentum_buffer_)

@triton.jit
def answer_1_caution_true(k, S, n, old, a, to):
    mean2 = S[-1] / n
    tl.store(a + 1, at_least(mean2, 0.001))
    tl.store(to + 3, mean2)

@triton.jit
def terms_0_caution_true_adapt_false(k, p, g, s):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p)
    momentum_buffer_ = damped * (lr * (y0 + lam * unless_off(lam, p))) + mu * momentum_buffer
    y2 = ((momentum_buffer_ > 0.0) & (y0 > 0.0)) | ((momentum_buffer_ < 0.0) & (y0 < 0.0))
    return (tl.where(y2, 1.0, 0.0 * momentum_buffer_),)

@triton.jit
def apply_caution_true_adapt_false(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p)
    momentum_buffer_ = damped * (lr * (y0 + lam * unless_off(lam, p))) + mu * momentum_buffer
    y2 = ((momentum_buffer_ > 0.0) & (y0 > 0.0)) | ((momentum_buffer_ < 0.0) & (y0 < 0.0))
    y3 = momentum_buffer_ * tl.where(y2, 1.0, 0.0 * momentum_buffer_)
    return (p - pace * (y3 / answer0), momentum_buffer_)

@triton.jit
def answer_0_caution_true_adapt_false(k, S, n, old, a, to):
    mean0 = S[-1] / n
    tl.store(a + 0, at_least(mean0, 0.001))
    tl.store(to + 0, 1.0)
    tl.store(to + 1, mean0)

@triton.jit
def apply_without_momentum_buffer(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5 = k
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    return (p - pace * (answer0 * y0),)

@triton.jit
def apply_without_momentum_buffer_adapt_false(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5 = k
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    return (p - pace * (lr * y0),)

@triton.jit
def terms_1_keep_norm_true(k, p, g, s):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    momentum_buffer_ = damped * (answer0 * y0) + mu * momentum_buffer
    return (p, momentum_buffer_)

@triton.jit
def terms_2_keep_norm_true(k, p, g, s):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    momentum_buffer_ = damped * (answer0 * y0) + mu * momentum_buffer
    return (p + answer1 * p - answer2 * momentum_buffer_,)

@triton.jit
def apply_keep_norm_true(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    momentum_buffer_ = damped * (answer0 * y0) + mu * momentum_buffer
    y2 = answer5 * (p + answer1 * p - answer2 * momentum_buffer_)
    return (p + answer3 * p - answer4 * momentum_buffer_ + y2, momentum_buffer_)

@triton.jit
def answer_1_keep_norm_true(k, S, n, old, a, to):
    y0 = root(S[-2])
    y1 = at_least(y0, tl.load(k + PACE) * root(S[-1]))
    y2 = (y0 > 0.0) & (y1 > 0.0)
    y3 = (y0 - tl.where(y2, y1, 1.0)) / tl.where(y2, y1, 1.0)
    tl.store(a + 1, tl.where(y2, y3, 0.0))
    tl.store(a + 2, tl.load(k + PACE) * tl.where(y2, y0 / tl.where(y2, y1, 1.0), 1.0))

@triton.jit
def answer_2_keep_norm_true(k, S, n, old, a, to):
    y0 = root(S[-1])
    y1 = root(S[-3])
    y2 = (y0 == 0.0) & (y1 > 0.0)
    y3 = (y1 > 0.0) & (y0 > 0.0)
    y4 = (y1 - tl.where(y3, y0, 1.0)) / tl.where(y3, y0, 1.0)
    tl.store(a + 3, tl.where(y2, 0.0, tl.load(a + 1)))
    tl.store(a + 4, tl.where(y2, 0.0, tl.load(a + 2)))
    tl.store(a + 5, tl.where(y3, y4, 0.0))

@triton.jit
def terms_0_keep_norm_true_adapt_false(k, p, g, s):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    momentum_buffer_ = damped * (lr * y0) + mu * momentum_buffer
    return (p, momentum_buffer_)

@triton.jit
def terms_1_keep_norm_true_adapt_false(k, p, g, s):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    momentum_buffer_ = damped * (lr * y0) + mu * momentum_buffer
    return (p + answer0 * p - answer1 * momentum_buffer_,)

@triton.jit
def apply_keep_norm_true_adapt_false(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5 = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p)
    momentum_buffer_ = damped * (lr * y0) + mu * momentum_buffer
    y2 = answer4 * (p + answer0 * p - answer1 * momentum_buffer_)
    return (p + answer2 * p - answer3 * momentum_buffer_ + y2, momentum_buffer_)

@triton.jit
def answer_0_keep_norm_true_adapt_false(k, S, n, old, a, to):
    weight_norm = root(S[-2])
    update_norm = root(S[-1])
    y2 = at_least(weight_norm, tl.load(k + PACE) * update_norm)
    y3 = (weight_norm > 0.0) & (y2 > 0.0)
    y4 = (weight_norm - tl.where(y3, y2, 1.0)) / tl.where(y3, y2, 1.0)
    y5 = tl.where(y3, weight_norm / tl.where(y3, y2, 1.0), 1.0)
    tl.store(a + 0, tl.where(y3, y4, 0.0))
    tl.store(a + 1, tl.load(k + PACE) * y5)
    tl.store(to + 0, weight_norm)
    tl.store(to + 1, update_norm)
    tl.store(to + 2, 1.0)

@triton.jit
def answer_1_keep_norm_true_adapt_false(k, S, n, old, a, to):
    y0 = root(S[-1])
    weight_norm = root(S[-3])
    y2 = (y0 == 0.0) & (weight_norm > 0.0)
    y3 = (weight_norm > 0.0) & (y0 > 0.0)
    y4 = (weight_norm - tl.where(y3, y0, 1.0)) / tl.where(y3, y0, 1.0)
    tl.store(a + 2, tl.where(y2, 0.0, tl.load(a + 0)))
    tl.store(a + 3, tl.where(y2, 0.0, tl.load(a + 1)))
    tl.store(a + 4, tl.where(y3, y4, 0.0))

@triton.jit
def answer_1_with_norm_keep_norm_first(k, S, n, old, a, to):
    y0 = root(S[-2])
    norm = tl.where(old[0] == 0.0, y0, old[0])
    y2 = at_least(y0, tl.load(k + PACE) * root(S[-1]))
    y3 = (norm > 0.0) & (y2 > 0.0)
    y4 = (norm - tl.where(y3, y2, 1.0)) / tl.where(y3, y2, 1.0)
    tl.store(a + 1, tl.where(y3, y4, 0.0))
    tl.store(a + 2, tl.load(k + PACE) * tl.where(y3, norm / tl.where(y3, y2, 1.0), 1.0))

@triton.jit
def answer_2_with_norm_keep_norm_first(k, S, n, old, a, to):
    y0 = root(S[-1])
    y1 = root(S[-3])
    y2 = (y0 == 0.0) & (y1 > 0.0)
    norm = tl.where(old[0] == 0.0, y1, old[0])
    y4 = (norm > 0.0) & (y1 > 0.0)
    y5 = (norm - tl.where(y4, y1, 1.0)) / tl.where(y4, y1, 1.0)
    y6 = (norm > 0.0) & (y0 > 0.0)
    y7 = (norm - tl.where(y6, y0, 1.0)) / tl.where(y6, y0, 1.0)
    tl.store(a + 3, tl.where(y2, tl.where(y4, y5, 0.0), tl.load(a + 1)))
    tl.store(a + 4, tl.where(y2, 0.0, tl.load(a + 2)))
    tl.store(a + 5, tl.where(y6, y7, 0.0))

@triton.jit
def remember_with_norm_keep_norm_first(k, S, n, old):
    norm = tl.where(old[0] == 0.0, root(S[-3]), old[0])
    return (norm,)

@triton.jit
def answer_0_with_norm_keep_norm_first_adapt_false(k, S, n, old, a, to):
    weight_norm = root(S[-2])
    norm = tl.where(old[0] == 0.0, weight_norm, old[0])
    update_norm = root(S[-1])
    y3 = at_least(weight_norm, tl.load(k + PACE) * update_norm)
    y4 = (norm > 0.0) & (y3 > 0.0)
    y5 = (norm - tl.where(y4, y3, 1.0)) / tl.where(y4, y3, 1.0)
    tl.store(a + 0, tl.where(y4, y5, 0.0))
    tl.store(a + 1, tl.load(k + PACE) * tl.where(y4, norm / tl.where(y4, y3, 1.0), 1.0))
    tl.store(to + 0, weight_norm)
    tl.store(to + 1, update_norm)
    tl.store(to + 2, 1.0)

@triton.jit
def answer_1_with_norm_keep_norm_first_adapt_false(k, S, n, old, a, to):
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
def remember_with_norm_keep_norm_first_adapt_false(k, S, n, old):
    weight_norm = root(S[-3])
    norm = tl.where(old[0] == 0.0, weight_norm, old[0])
    return (norm,)

PROGRAMS = {
    "Lars": Functions(values, terms=(terms_0,), apply=apply, answers=(answer_0,)),
    "LarsNesterovTrue": Functions(values, terms=(terms_0,), apply=apply_nesterov_true, answers=(answer_0,)),
    "LarsAdaptFalse": Functions(values, apply=apply_adapt_false, answers=(answer_0_adapt_false,)),
    "LarsAdaptFalseNesterovTrue": Functions(values, apply=apply_adapt_false_nesterov_true,
        answers=(answer_0_adapt_false,)),
    "LarsCautionTrue": Functions(values, terms=(terms_0, terms_1_caution_true), apply=apply_caution_true,
        answers=(answer_0, answer_1_caution_true)),
    "LarsCautionTrueAdaptFalse": Functions(values, terms=(terms_0_caution_true_adapt_false,),
        apply=apply_caution_true_adapt_false, answers=(answer_0_caution_true_adapt_false,)),
    "LarsWithoutMomentumBuffer": Functions(values, terms=(terms_0,), apply=apply_without_momentum_buffer,
        answers=(answer_0,)),
    "LarsWithoutMomentumBufferAdaptFalse": Functions(values, apply=apply_without_momentum_buffer_adapt_false,
        answers=(answer_0_adapt_false,)),
    "LarsKeepNormTrue": Functions(values, terms=(terms_0, terms_1_keep_norm_true, terms_2_keep_norm_true),
        apply=apply_keep_norm_true, answers=(answer_0, answer_1_keep_norm_true, answer_2_keep_norm_true)),
    "LarsKeepNormTrueAdaptFalse": Functions(values, terms=(terms_0_keep_norm_true_adapt_false,
        terms_1_keep_norm_true_adapt_false), apply=apply_keep_norm_true_adapt_false,
        answers=(answer_0_keep_norm_true_adapt_false, answer_1_keep_norm_true_adapt_false)),
    "LarsWithNormKeepNormFirst": Functions(values, terms=(terms_0, terms_1_keep_norm_true, terms_2_keep_norm_true),
        apply=apply_keep_norm_true, answers=(answer_0, answer_1_with_norm_keep_norm_first,
        answer_2_with_norm_keep_norm_first), remember=remember_with_norm_keep_norm_first),
    "LarsWithNormKeepNormFirstAdaptFalse": Functions(values, terms=(terms_0_keep_norm_true_adapt_false,
        terms_1_keep_norm_true_adapt_false), apply=apply_keep_norm_true_adapt_false,
        answers=(answer_0_with_norm_keep_norm_first_adapt_false, answer_1_with_norm_keep_norm_first_adapt_false),
        remember=remember_with_norm_keep_norm_first_adapt_false),
}
