"""The programs of Lars, as device functions.

Printed from rules/lars.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import at_least, at_most, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns
from layerwise.engines.gpu.program import Functions

# The numbers that are known before a tensor is read.
(L2, LAM, LAM_X, LAM_W, ETA, EPS, UNIT, LR, DAMPED, MU, PACE, WHOLE, TRUST_MIN_NORM, TRUST_LOW, TRUST_HIGH,
    TRUST_UNDEFINED, TRUST_ADAPTS
) = columns(17)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + L2).to(COMPUTE), tl.load(k + LAM).to(COMPUTE), tl.load(k + LAM_X).to(COMPUTE),
        tl.load(k + LR).to(COMPUTE), tl.load(k + DAMPED).to(COMPUTE), tl.load(k + MU).to(COMPUTE),
        tl.load(k + PACE).to(COMPUTE), tl.load(a + 0).to(COMPUTE), tl.load(a + 1).to(COMPUTE),
        tl.load(a + 2).to(COMPUTE), tl.load(a + 3).to(COMPUTE), tl.load(a + 4).to(COMPUTE), tl.load(a + 5).to(COMPUTE),
        tl.load(a + 6).to(COMPUTE))

@triton.jit
def terms_0(k, p, g, s):
    l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short, first, second, more = k
    g_ = g + l2 * unless_off(l2, p)
    x_ = g_ + lam_x * unless_off(lam_x, p)
    return (p, x_)

@triton.jit
def apply(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    b_ = damped * u + mu * b
    return (p - pace * b_, b_)

@triton.jit
def answer_0(k, S, n, old, a, to):
    norm_p = root(S[-2])
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    norm_x = root(S[-1])
    f = at_least(norm_x, tl.load(k + TRUST_MIN_NORM))
    d = f + tl.load(k + LAM_W) * unless_off(tl.load(k + LAM_W), w) + tl.load(k + EPS)
    ratio = tl.load(k + ETA) * w / tl.where(f == 0.0, 1.0, d)
    ratio_ = at_most(at_least(ratio / tl.load(k + UNIT), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio__ = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (f != 0.0), ratio_,
        tl.load(k + TRUST_UNDEFINED)))
    tl.store(a + 0, tl.load(k + LR) * ratio__)
    tl.store(to + 0, norm_p)
    tl.store(to + 1, norm_x)
    tl.store(to + 2, ratio__)

@triton.jit
def apply_nesterov_true(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    b_ = damped * u + mu * b
    moved = u + mu * b_
    return (p - pace * moved, b_)

@triton.jit
def apply_adapt_false(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    b_ = damped * u + mu * b
    return (p - pace * b_, b_)

@triton.jit
def answer_0_adapt_false(k, S, n, old, a, to):
    tl.store(to + 0, 1.0)

@triton.jit
def apply_adapt_false_nesterov_true(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    b_ = damped * u + mu * b
    moved = u + mu * b_
    return (p - pace * moved, b_)

@triton.jit
def terms_1_caution_true(k, p, g, s):
    l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    b_ = damped * u + mu * b
    agrees = tl.where(((b_ > 0.0) & (g_ > 0.0)) | ((b_ < 0.0) & (g_ < 0.0)), 1.0, 0.0 * b_)
    return (agrees,)

@triton.jit
def apply_caution_true(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    b_ = damped * u + mu * b
    agrees = tl.where(((b_ > 0.0) & (g_ > 0.0)) | ((b_ < 0.0) & (g_ < 0.0)), 1.0, 0.0 * b_)
    moved = b_ * agrees / size
    return (p - pace * moved, b_)

@triton.jit
def answer_1_caution_true(k, S, n, old, a, to):
    share = S[-1] / n
    size = at_least(share, 0.001)
    tl.store(a + 1, size)
    tl.store(to + 3, share)

@triton.jit
def terms_0_caution_true_adapt_false(k, p, g, s):
    l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    b_ = damped * u + mu * b
    agrees = tl.where(((b_ > 0.0) & (g_ > 0.0)) | ((b_ < 0.0) & (g_ < 0.0)), 1.0, 0.0 * b_)
    return (agrees,)

@triton.jit
def apply_caution_true_adapt_false(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    b_ = damped * u + mu * b
    agrees = tl.where(((b_ > 0.0) & (g_ > 0.0)) | ((b_ < 0.0) & (g_ < 0.0)), 1.0, 0.0 * b_)
    moved = b_ * agrees / size
    return (p - pace * moved, b_)

@triton.jit
def answer_0_caution_true_adapt_false(k, S, n, old, a, to):
    share = S[-1] / n
    size = at_least(share, 0.001)
    tl.store(a + 1, size)
    tl.store(to + 0, 1.0)
    tl.store(to + 1, share)

@triton.jit
def apply_without_momentum_buffer(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short, first, second, more = k
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    return (p - pace * u,)

@triton.jit
def apply_without_momentum_buffer_adapt_false(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short, first, second, more = k
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    return (p - pace * u,)

@triton.jit
def terms_1_keep_norm_true(k, p, g, s):
    l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    b_ = damped * u + mu * b
    return (p, b_)

@triton.jit
def terms_2_keep_norm_true(k, p, g, s):
    l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    b_ = damped * u + mu * b
    q = p + f_less_1 * p - short * b_
    return (q,)

@triton.jit
def apply_keep_norm_true(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    b_ = damped * u + mu * b
    q = p + f_less_1 * p - short * b_
    return (p + first * p - second * b_ + more * q, b_)

@triton.jit
def answer_1_keep_norm_true(k, S, n, old, a, to):
    norm = root(S[-2])
    norm_ = root(S[-1])
    longest = at_least(norm, tl.load(k + PACE) * norm_)
    there = (norm > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there, (norm - tl.where(there, longest, 1.0)) / tl.where(there, longest, 1.0), 0.0)
    f = tl.where(there, norm / tl.where(there, longest, 1.0), 1.0)
    short = tl.load(k + PACE) * f
    tl.store(a + 2, f_less_1)
    tl.store(a + 3, short)

@triton.jit
def answer_2_keep_norm_true(k, S, n, old, a, to):
    norm = root(S[-1])
    norm_ = root(S[-3])
    cancels = (norm == 0.0) & (norm_ > 0.0)
    first = tl.where(cancels, 0.0, tl.load(a + 2))
    second = tl.where(cancels, 0.0, tl.load(a + 3))
    there = (norm_ > 0.0) & (norm > 0.0)
    more = tl.where(there, (norm_ - tl.where(there, norm, 1.0)) / tl.where(there, norm, 1.0), 0.0)
    tl.store(a + 4, first)
    tl.store(a + 5, second)
    tl.store(a + 6, more)

@triton.jit
def terms_0_keep_norm_true_adapt_false(k, p, g, s):
    l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    b_ = damped * u + mu * b
    return (p, b_)

@triton.jit
def terms_1_keep_norm_true_adapt_false(k, p, g, s):
    l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    b_ = damped * u + mu * b
    q = p + f_less_1 * p - short * b_
    return (q,)

@triton.jit
def apply_keep_norm_true_adapt_false(k, p, g, s, x):
    l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    b_ = damped * u + mu * b
    q = p + f_less_1 * p - short * b_
    return (p + first * p - second * b_ + more * q, b_)

@triton.jit
def answer_0_keep_norm_true_adapt_false(k, S, n, old, a, to):
    norm = root(S[-2])
    norm_ = root(S[-1])
    longest = at_least(norm, tl.load(k + PACE) * norm_)
    there = (norm > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there, (norm - tl.where(there, longest, 1.0)) / tl.where(there, longest, 1.0), 0.0)
    f = tl.where(there, norm / tl.where(there, longest, 1.0), 1.0)
    short = tl.load(k + PACE) * f
    tl.store(a + 2, f_less_1)
    tl.store(a + 3, short)
    tl.store(to + 0, norm)
    tl.store(to + 1, norm_)
    tl.store(to + 2, 1.0)

@triton.jit
def answer_1_with_norm_keep_norm_first(k, S, n, old, a, to):
    norm = root(S[-2])
    R = tl.where(old[0] == 0.0, norm, old[0])
    norm_ = root(S[-1])
    longest = at_least(norm, tl.load(k + PACE) * norm_)
    there = (R > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there, (R - tl.where(there, longest, 1.0)) / tl.where(there, longest, 1.0), 0.0)
    f = tl.where(there, R / tl.where(there, longest, 1.0), 1.0)
    short = tl.load(k + PACE) * f
    tl.store(a + 2, f_less_1)
    tl.store(a + 3, short)

@triton.jit
def answer_2_with_norm_keep_norm_first(k, S, n, old, a, to):
    norm = root(S[-1])
    norm_ = root(S[-3])
    cancels = (norm == 0.0) & (norm_ > 0.0)
    R = tl.where(old[0] == 0.0, norm_, old[0])
    there = (R > 0.0) & (norm_ > 0.0)
    first = tl.where(cancels, tl.where(there, (R - tl.where(there, norm_, 1.0)) / tl.where(there, norm_, 1.0), 0.0),
        tl.load(a + 2))
    second = tl.where(cancels, 0.0, tl.load(a + 3))
    there_ = (R > 0.0) & (norm > 0.0)
    more = tl.where(there_, (R - tl.where(there_, norm, 1.0)) / tl.where(there_, norm, 1.0), 0.0)
    tl.store(a + 4, first)
    tl.store(a + 5, second)
    tl.store(a + 6, more)

@triton.jit
def remember_with_norm_keep_norm_first(k, S, n, old):
    norm = root(S[-3])
    R = tl.where(old[0] == 0.0, norm, old[0])
    return (R,)

@triton.jit
def answer_0_with_norm_keep_norm_first_adapt_false(k, S, n, old, a, to):
    norm = root(S[-2])
    R = tl.where(old[0] == 0.0, norm, old[0])
    norm_ = root(S[-1])
    longest = at_least(norm, tl.load(k + PACE) * norm_)
    there = (R > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there, (R - tl.where(there, longest, 1.0)) / tl.where(there, longest, 1.0), 0.0)
    f = tl.where(there, R / tl.where(there, longest, 1.0), 1.0)
    short = tl.load(k + PACE) * f
    tl.store(a + 2, f_less_1)
    tl.store(a + 3, short)
    tl.store(to + 0, norm)
    tl.store(to + 1, norm_)
    tl.store(to + 2, 1.0)

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
        answers=(answer_0_keep_norm_true_adapt_false, answer_2_keep_norm_true)),
    "LarsWithNormKeepNormFirst": Functions(values, terms=(terms_0, terms_1_keep_norm_true, terms_2_keep_norm_true),
        apply=apply_keep_norm_true, answers=(answer_0, answer_1_with_norm_keep_norm_first,
        answer_2_with_norm_keep_norm_first), remember=remember_with_norm_keep_norm_first),
    "LarsWithNormKeepNormFirstAdaptFalse": Functions(values, terms=(terms_0_keep_norm_true_adapt_false,
        terms_1_keep_norm_true_adapt_false), apply=apply_keep_norm_true_adapt_false,
        answers=(answer_0_with_norm_keep_norm_first_adapt_false, answer_2_with_norm_keep_norm_first),
        remember=remember_with_norm_keep_norm_first),
}
