"""The programs of Lars, as device functions.

Printed from rules/lars.py by `make generate`: change that, not this file.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import at_least, at_most, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns
from layerwise.engines.gpu.program import Program

# The numbers that are known before a tensor is read.
(
    L2,
    LAM,
    LAM_X,
    LAM_W,
    ETA,
    EPS,
    UNIT,
    LR,
    DAMPED,
    MU,
    PACE,
    TRUST_MIN_NORM,
    TRUST_MAX_NORM,
    TRUST_EPS,
    TRUST_LOW,
    TRUST_HIGH,
    TRUST_UNDEFINED,
    TRUST_ADAPTS,
) = columns(18)


@triton.jit
def lars_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    lam_x = tl.load(k + LAM_X).to(COMPUTE)
    damped = tl.load(k + DAMPED).to(COMPUTE)
    mu = tl.load(k + MU).to(COMPUTE)
    pace = tl.load(k + PACE).to(COMPUTE)
    step = tl.load(a + 0).to(COMPUTE)
    return (l2, lam, lam_x, damped, mu, pace, step)


@triton.jit
def lars_terms(k, p, g, s):
    l2, lam, lam_x, damped, mu, pace, step = k
    g_ = g + l2 * unless_off(l2, p)
    x_ = g_ + lam_x * unless_off(lam_x, p)
    return (p, x_)


@triton.jit
def lars_apply(k, p, g, s, x):
    l2, lam, lam_x, damped, mu, pace, step = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    b_ = damped * u + mu * b
    return (p - pace * b_, b_)


@triton.jit
def lars_answer(k, S, n, old, a):
    pp = S[0]
    xx = S[1]
    norm_p = root(pp)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    norm_x = root(xx)
    f = at_least(norm_x, tl.load(k + TRUST_MIN_NORM))
    d = f + tl.load(k + LAM_W) * unless_off(tl.load(k + LAM_W), w) + tl.load(k + EPS)
    ratio = tl.load(k + ETA) * w / tl.where(f == 0.0, 1.0, d)
    ratio_ = at_most(at_least(ratio / tl.load(k + UNIT), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio__ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (f != 0.0), ratio_, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(a + 0, tl.load(k + LR) * ratio__)


@triton.jit
def lars_report(k, S, n, old, to):
    pp = S[0]
    xx = S[1]
    norm_p = root(pp)
    norm_x = root(xx)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    f = at_least(norm_x, tl.load(k + TRUST_MIN_NORM))
    d = f + tl.load(k + LAM_W) * unless_off(tl.load(k + LAM_W), w) + tl.load(k + EPS)
    ratio = tl.load(k + ETA) * w / tl.where(f == 0.0, 1.0, d)
    ratio_ = at_most(at_least(ratio / tl.load(k + UNIT), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio__ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (f != 0.0), ratio_, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(to + 0, norm_p)
    tl.store(to + 1, norm_x)
    tl.store(to + 2, ratio__)


@triton.jit
def lars_nesterov_true_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    lam_x = tl.load(k + LAM_X).to(COMPUTE)
    damped = tl.load(k + DAMPED).to(COMPUTE)
    mu = tl.load(k + MU).to(COMPUTE)
    pace = tl.load(k + PACE).to(COMPUTE)
    step = tl.load(a + 0).to(COMPUTE)
    return (l2, lam, lam_x, damped, mu, pace, step)


@triton.jit
def lars_nesterov_true_terms(k, p, g, s):
    l2, lam, lam_x, damped, mu, pace, step = k
    g_ = g + l2 * unless_off(l2, p)
    x_ = g_ + lam_x * unless_off(lam_x, p)
    return (p, x_)


@triton.jit
def lars_nesterov_true_apply(k, p, g, s, x):
    l2, lam, lam_x, damped, mu, pace, step = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    b_ = damped * u + mu * b
    moved = u + mu * b_
    return (p - pace * moved, b_)


@triton.jit
def lars_nesterov_true_answer(k, S, n, old, a):
    pp = S[0]
    xx = S[1]
    norm_p = root(pp)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    norm_x = root(xx)
    f = at_least(norm_x, tl.load(k + TRUST_MIN_NORM))
    d = f + tl.load(k + LAM_W) * unless_off(tl.load(k + LAM_W), w) + tl.load(k + EPS)
    ratio = tl.load(k + ETA) * w / tl.where(f == 0.0, 1.0, d)
    ratio_ = at_most(at_least(ratio / tl.load(k + UNIT), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio__ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (f != 0.0), ratio_, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(a + 0, tl.load(k + LR) * ratio__)


@triton.jit
def lars_nesterov_true_report(k, S, n, old, to):
    pp = S[0]
    xx = S[1]
    norm_p = root(pp)
    norm_x = root(xx)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    f = at_least(norm_x, tl.load(k + TRUST_MIN_NORM))
    d = f + tl.load(k + LAM_W) * unless_off(tl.load(k + LAM_W), w) + tl.load(k + EPS)
    ratio = tl.load(k + ETA) * w / tl.where(f == 0.0, 1.0, d)
    ratio_ = at_most(at_least(ratio / tl.load(k + UNIT), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio__ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (f != 0.0), ratio_, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(to + 0, norm_p)
    tl.store(to + 1, norm_x)
    tl.store(to + 2, ratio__)


@triton.jit
def lars_adapt_false_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    lr = tl.load(k + LR).to(COMPUTE)
    damped = tl.load(k + DAMPED).to(COMPUTE)
    mu = tl.load(k + MU).to(COMPUTE)
    pace = tl.load(k + PACE).to(COMPUTE)
    return (l2, lam, lr, damped, mu, pace)


@triton.jit
def lars_adapt_false_apply(k, p, g, s, x):
    l2, lam, lr, damped, mu, pace = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    b_ = damped * u + mu * b
    return (p - pace * b_, b_)


@triton.jit
def lars_adapt_false_report(k, S, n, old, to):
    tl.store(to + 0, 1.0)


@triton.jit
def lars_adapt_false_nesterov_true_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    lr = tl.load(k + LR).to(COMPUTE)
    damped = tl.load(k + DAMPED).to(COMPUTE)
    mu = tl.load(k + MU).to(COMPUTE)
    pace = tl.load(k + PACE).to(COMPUTE)
    return (l2, lam, lr, damped, mu, pace)


@triton.jit
def lars_adapt_false_nesterov_true_apply(k, p, g, s, x):
    l2, lam, lr, damped, mu, pace = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    b_ = damped * u + mu * b
    moved = u + mu * b_
    return (p - pace * moved, b_)


@triton.jit
def lars_adapt_false_nesterov_true_report(k, S, n, old, to):
    tl.store(to + 0, 1.0)


@triton.jit
def lars_caution_true_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    lam_x = tl.load(k + LAM_X).to(COMPUTE)
    damped = tl.load(k + DAMPED).to(COMPUTE)
    mu = tl.load(k + MU).to(COMPUTE)
    pace = tl.load(k + PACE).to(COMPUTE)
    step = tl.load(a + 0).to(COMPUTE)
    size = tl.load(a + 1).to(COMPUTE)
    return (l2, lam, lam_x, damped, mu, pace, step, size)


@triton.jit
def lars_caution_true_terms_0(k, p, g, s):
    l2, lam, lam_x, damped, mu, pace, step, size = k
    g_ = g + l2 * unless_off(l2, p)
    x_ = g_ + lam_x * unless_off(lam_x, p)
    return (p, x_)


@triton.jit
def lars_caution_true_terms_1(k, p, g, s):
    l2, lam, lam_x, damped, mu, pace, step, size = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    b_ = damped * u + mu * b
    agrees = tl.where(((b_ > 0.0) & (g_ > 0.0)) | ((b_ < 0.0) & (g_ < 0.0)), 1.0, 0.0 * b_)
    return (agrees,)


@triton.jit
def lars_caution_true_apply(k, p, g, s, x):
    l2, lam, lam_x, damped, mu, pace, step, size = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    b_ = damped * u + mu * b
    agrees = tl.where(((b_ > 0.0) & (g_ > 0.0)) | ((b_ < 0.0) & (g_ < 0.0)), 1.0, 0.0 * b_)
    moved = b_ * agrees / size
    return (p - pace * moved, b_)


@triton.jit
def lars_caution_true_answer_0(k, S, n, old, a):
    pp = S[0]
    xx = S[1]
    norm_p = root(pp)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    norm_x = root(xx)
    f = at_least(norm_x, tl.load(k + TRUST_MIN_NORM))
    d = f + tl.load(k + LAM_W) * unless_off(tl.load(k + LAM_W), w) + tl.load(k + EPS)
    ratio = tl.load(k + ETA) * w / tl.where(f == 0.0, 1.0, d)
    ratio_ = at_most(at_least(ratio / tl.load(k + UNIT), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio__ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (f != 0.0), ratio_, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(a + 0, tl.load(k + LR) * ratio__)


@triton.jit
def lars_caution_true_answer_1(k, S, n, old, a):
    share = S[2] / n
    size = at_least(share, 0.001)
    tl.store(a + 1, size)


@triton.jit
def lars_caution_true_report(k, S, n, old, to):
    pp = S[0]
    xx = S[1]
    share = S[2] / n
    norm_p = root(pp)
    norm_x = root(xx)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    f = at_least(norm_x, tl.load(k + TRUST_MIN_NORM))
    d = f + tl.load(k + LAM_W) * unless_off(tl.load(k + LAM_W), w) + tl.load(k + EPS)
    ratio = tl.load(k + ETA) * w / tl.where(f == 0.0, 1.0, d)
    ratio_ = at_most(at_least(ratio / tl.load(k + UNIT), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio__ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (f != 0.0), ratio_, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(to + 0, norm_p)
    tl.store(to + 1, norm_x)
    tl.store(to + 2, ratio__)
    tl.store(to + 3, share)


@triton.jit
def lars_caution_true_adapt_false_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    lr = tl.load(k + LR).to(COMPUTE)
    damped = tl.load(k + DAMPED).to(COMPUTE)
    mu = tl.load(k + MU).to(COMPUTE)
    pace = tl.load(k + PACE).to(COMPUTE)
    size = tl.load(a + 0).to(COMPUTE)
    return (l2, lam, lr, damped, mu, pace, size)


@triton.jit
def lars_caution_true_adapt_false_terms(k, p, g, s):
    l2, lam, lr, damped, mu, pace, size = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    b_ = damped * u + mu * b
    agrees = tl.where(((b_ > 0.0) & (g_ > 0.0)) | ((b_ < 0.0) & (g_ < 0.0)), 1.0, 0.0 * b_)
    return (agrees,)


@triton.jit
def lars_caution_true_adapt_false_apply(k, p, g, s, x):
    l2, lam, lr, damped, mu, pace, size = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    b_ = damped * u + mu * b
    agrees = tl.where(((b_ > 0.0) & (g_ > 0.0)) | ((b_ < 0.0) & (g_ < 0.0)), 1.0, 0.0 * b_)
    moved = b_ * agrees / size
    return (p - pace * moved, b_)


@triton.jit
def lars_caution_true_adapt_false_answer(k, S, n, old, a):
    share = S[0] / n
    size = at_least(share, 0.001)
    tl.store(a + 0, size)


@triton.jit
def lars_caution_true_adapt_false_report(k, S, n, old, to):
    share = S[0] / n
    tl.store(to + 0, 1.0)
    tl.store(to + 1, share)


@triton.jit
def lars_without_momentum_buffer_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    lam_x = tl.load(k + LAM_X).to(COMPUTE)
    pace = tl.load(k + PACE).to(COMPUTE)
    step = tl.load(a + 0).to(COMPUTE)
    return (l2, lam, lam_x, pace, step)


@triton.jit
def lars_without_momentum_buffer_terms(k, p, g, s):
    l2, lam, lam_x, pace, step = k
    g_ = g + l2 * unless_off(l2, p)
    x_ = g_ + lam_x * unless_off(lam_x, p)
    return (p, x_)


@triton.jit
def lars_without_momentum_buffer_apply(k, p, g, s, x):
    l2, lam, lam_x, pace, step = k
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    return (p - pace * u,)


@triton.jit
def lars_without_momentum_buffer_answer(k, S, n, old, a):
    pp = S[0]
    xx = S[1]
    norm_p = root(pp)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    norm_x = root(xx)
    f = at_least(norm_x, tl.load(k + TRUST_MIN_NORM))
    d = f + tl.load(k + LAM_W) * unless_off(tl.load(k + LAM_W), w) + tl.load(k + EPS)
    ratio = tl.load(k + ETA) * w / tl.where(f == 0.0, 1.0, d)
    ratio_ = at_most(at_least(ratio / tl.load(k + UNIT), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio__ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (f != 0.0), ratio_, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(a + 0, tl.load(k + LR) * ratio__)


@triton.jit
def lars_without_momentum_buffer_report(k, S, n, old, to):
    pp = S[0]
    xx = S[1]
    norm_p = root(pp)
    norm_x = root(xx)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    f = at_least(norm_x, tl.load(k + TRUST_MIN_NORM))
    d = f + tl.load(k + LAM_W) * unless_off(tl.load(k + LAM_W), w) + tl.load(k + EPS)
    ratio = tl.load(k + ETA) * w / tl.where(f == 0.0, 1.0, d)
    ratio_ = at_most(at_least(ratio / tl.load(k + UNIT), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio__ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (f != 0.0), ratio_, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(to + 0, norm_p)
    tl.store(to + 1, norm_x)
    tl.store(to + 2, ratio__)


@triton.jit
def lars_without_momentum_buffer_adapt_false_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    lr = tl.load(k + LR).to(COMPUTE)
    pace = tl.load(k + PACE).to(COMPUTE)
    return (l2, lam, lr, pace)


@triton.jit
def lars_without_momentum_buffer_adapt_false_apply(k, p, g, s, x):
    l2, lam, lr, pace = k
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    return (p - pace * u,)


@triton.jit
def lars_without_momentum_buffer_adapt_false_report(k, S, n, old, to):
    tl.store(to + 0, 1.0)


@triton.jit
def lars_keep_norm_true_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    lam_x = tl.load(k + LAM_X).to(COMPUTE)
    damped = tl.load(k + DAMPED).to(COMPUTE)
    mu = tl.load(k + MU).to(COMPUTE)
    step = tl.load(a + 0).to(COMPUTE)
    f_less_1 = tl.load(a + 1).to(COMPUTE)
    short = tl.load(a + 2).to(COMPUTE)
    first = tl.load(a + 3).to(COMPUTE)
    second = tl.load(a + 4).to(COMPUTE)
    more = tl.load(a + 5).to(COMPUTE)
    return (l2, lam, lam_x, damped, mu, step, f_less_1, short, first, second, more)


@triton.jit
def lars_keep_norm_true_terms_0(k, p, g, s):
    l2, lam, lam_x, damped, mu, step, f_less_1, short, first, second, more = k
    g_ = g + l2 * unless_off(l2, p)
    x_ = g_ + lam_x * unless_off(lam_x, p)
    return (p, x_)


@triton.jit
def lars_keep_norm_true_terms_1(k, p, g, s):
    l2, lam, lam_x, damped, mu, step, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    b_ = damped * u + mu * b
    return (p, b_)


@triton.jit
def lars_keep_norm_true_terms_2(k, p, g, s):
    l2, lam, lam_x, damped, mu, step, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    b_ = damped * u + mu * b
    q = p + f_less_1 * p - short * b_
    return (q,)


@triton.jit
def lars_keep_norm_true_apply(k, p, g, s, x):
    l2, lam, lam_x, damped, mu, step, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    b_ = damped * u + mu * b
    q = p + f_less_1 * p - short * b_
    return (p + first * p - second * b_ + more * q, b_)


@triton.jit
def lars_keep_norm_true_answer_0(k, S, n, old, a):
    pp = S[0]
    xx = S[1]
    norm_p = root(pp)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    norm_x = root(xx)
    f = at_least(norm_x, tl.load(k + TRUST_MIN_NORM))
    d = f + tl.load(k + LAM_W) * unless_off(tl.load(k + LAM_W), w) + tl.load(k + EPS)
    ratio = tl.load(k + ETA) * w / tl.where(f == 0.0, 1.0, d)
    ratio_ = at_most(at_least(ratio / tl.load(k + UNIT), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio__ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (f != 0.0), ratio_, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(a + 0, tl.load(k + LR) * ratio__)


@triton.jit
def lars_keep_norm_true_answer_1(k, S, n, old, a):
    pp_ = S[2]
    bb = S[3]
    norm_p = root(pp_)
    norm_b = root(bb)
    longest = at_least(norm_p, tl.load(k + PACE) * norm_b)
    there = (norm_p > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there, (norm_p - tl.where(there, longest, 1.0)) / tl.where(there, longest, 1.0), 0.0)
    f = tl.where(there, norm_p / tl.where(there, longest, 1.0), 1.0)
    short = tl.load(k + PACE) * f
    tl.store(a + 1, f_less_1)
    tl.store(a + 2, short)


@triton.jit
def lars_keep_norm_true_answer_2(k, S, n, old, a):
    pp_ = S[2]
    bb = S[3]
    qq = S[4]
    norm = root(qq)
    norm_p = root(pp_)
    cancels = (norm == 0.0) & (norm_p > 0.0)
    norm_b = root(bb)
    longest = at_least(norm_p, tl.load(k + PACE) * norm_b)
    there = (norm_p > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there, (norm_p - tl.where(there, longest, 1.0)) / tl.where(there, longest, 1.0), 0.0)
    first = tl.where(cancels, 0.0, f_less_1)
    f = tl.where(there, norm_p / tl.where(there, longest, 1.0), 1.0)
    short = tl.load(k + PACE) * f
    second = tl.where(cancels, 0.0, short)
    there_ = (norm_p > 0.0) & (norm > 0.0)
    more = tl.where(there_, (norm_p - tl.where(there_, norm, 1.0)) / tl.where(there_, norm, 1.0), 0.0)
    tl.store(a + 3, first)
    tl.store(a + 4, second)
    tl.store(a + 5, more)


@triton.jit
def lars_keep_norm_true_report(k, S, n, old, to):
    pp = S[0]
    xx = S[1]
    norm_p = root(pp)
    norm_x = root(xx)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    f = at_least(norm_x, tl.load(k + TRUST_MIN_NORM))
    d = f + tl.load(k + LAM_W) * unless_off(tl.load(k + LAM_W), w) + tl.load(k + EPS)
    ratio = tl.load(k + ETA) * w / tl.where(f == 0.0, 1.0, d)
    ratio_ = at_most(at_least(ratio / tl.load(k + UNIT), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio__ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (f != 0.0), ratio_, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(to + 0, norm_p)
    tl.store(to + 1, norm_x)
    tl.store(to + 2, ratio__)


@triton.jit
def lars_keep_norm_true_adapt_false_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    lr = tl.load(k + LR).to(COMPUTE)
    damped = tl.load(k + DAMPED).to(COMPUTE)
    mu = tl.load(k + MU).to(COMPUTE)
    f_less_1 = tl.load(a + 0).to(COMPUTE)
    short = tl.load(a + 1).to(COMPUTE)
    first = tl.load(a + 2).to(COMPUTE)
    second = tl.load(a + 3).to(COMPUTE)
    more = tl.load(a + 4).to(COMPUTE)
    return (l2, lam, lr, damped, mu, f_less_1, short, first, second, more)


@triton.jit
def lars_keep_norm_true_adapt_false_terms_0(k, p, g, s):
    l2, lam, lr, damped, mu, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    b_ = damped * u + mu * b
    return (p, b_)


@triton.jit
def lars_keep_norm_true_adapt_false_terms_1(k, p, g, s):
    l2, lam, lr, damped, mu, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    b_ = damped * u + mu * b
    q = p + f_less_1 * p - short * b_
    return (q,)


@triton.jit
def lars_keep_norm_true_adapt_false_apply(k, p, g, s, x):
    l2, lam, lr, damped, mu, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    b_ = damped * u + mu * b
    q = p + f_less_1 * p - short * b_
    return (p + first * p - second * b_ + more * q, b_)


@triton.jit
def lars_keep_norm_true_adapt_false_answer_0(k, S, n, old, a):
    pp = S[0]
    bb = S[1]
    norm_p = root(pp)
    norm_b = root(bb)
    longest = at_least(norm_p, tl.load(k + PACE) * norm_b)
    there = (norm_p > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there, (norm_p - tl.where(there, longest, 1.0)) / tl.where(there, longest, 1.0), 0.0)
    f = tl.where(there, norm_p / tl.where(there, longest, 1.0), 1.0)
    short = tl.load(k + PACE) * f
    tl.store(a + 0, f_less_1)
    tl.store(a + 1, short)


@triton.jit
def lars_keep_norm_true_adapt_false_answer_1(k, S, n, old, a):
    pp = S[0]
    bb = S[1]
    qq = S[2]
    norm = root(qq)
    norm_p = root(pp)
    cancels = (norm == 0.0) & (norm_p > 0.0)
    norm_b = root(bb)
    longest = at_least(norm_p, tl.load(k + PACE) * norm_b)
    there = (norm_p > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there, (norm_p - tl.where(there, longest, 1.0)) / tl.where(there, longest, 1.0), 0.0)
    first = tl.where(cancels, 0.0, f_less_1)
    f = tl.where(there, norm_p / tl.where(there, longest, 1.0), 1.0)
    short = tl.load(k + PACE) * f
    second = tl.where(cancels, 0.0, short)
    there_ = (norm_p > 0.0) & (norm > 0.0)
    more = tl.where(there_, (norm_p - tl.where(there_, norm, 1.0)) / tl.where(there_, norm, 1.0), 0.0)
    tl.store(a + 2, first)
    tl.store(a + 3, second)
    tl.store(a + 4, more)


@triton.jit
def lars_keep_norm_true_adapt_false_report(k, S, n, old, to):
    tl.store(to + 0, 1.0)


@triton.jit
def lars_with_norm_keep_norm_first_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    lam_x = tl.load(k + LAM_X).to(COMPUTE)
    damped = tl.load(k + DAMPED).to(COMPUTE)
    mu = tl.load(k + MU).to(COMPUTE)
    step = tl.load(a + 0).to(COMPUTE)
    f_less_1 = tl.load(a + 1).to(COMPUTE)
    short = tl.load(a + 2).to(COMPUTE)
    first = tl.load(a + 3).to(COMPUTE)
    second = tl.load(a + 4).to(COMPUTE)
    more = tl.load(a + 5).to(COMPUTE)
    return (l2, lam, lam_x, damped, mu, step, f_less_1, short, first, second, more)


@triton.jit
def lars_with_norm_keep_norm_first_terms_0(k, p, g, s):
    l2, lam, lam_x, damped, mu, step, f_less_1, short, first, second, more = k
    g_ = g + l2 * unless_off(l2, p)
    x_ = g_ + lam_x * unless_off(lam_x, p)
    return (p, x_)


@triton.jit
def lars_with_norm_keep_norm_first_terms_1(k, p, g, s):
    l2, lam, lam_x, damped, mu, step, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    b_ = damped * u + mu * b
    return (p, b_)


@triton.jit
def lars_with_norm_keep_norm_first_terms_2(k, p, g, s):
    l2, lam, lam_x, damped, mu, step, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    b_ = damped * u + mu * b
    q = p + f_less_1 * p - short * b_
    return (q,)


@triton.jit
def lars_with_norm_keep_norm_first_apply(k, p, g, s, x):
    l2, lam, lam_x, damped, mu, step, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = step * r
    b_ = damped * u + mu * b
    q = p + f_less_1 * p - short * b_
    return (p + first * p - second * b_ + more * q, b_)


@triton.jit
def lars_with_norm_keep_norm_first_answer_0(k, S, n, old, a):
    pp = S[0]
    xx = S[1]
    norm_p = root(pp)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    norm_x = root(xx)
    f = at_least(norm_x, tl.load(k + TRUST_MIN_NORM))
    d = f + tl.load(k + LAM_W) * unless_off(tl.load(k + LAM_W), w) + tl.load(k + EPS)
    ratio = tl.load(k + ETA) * w / tl.where(f == 0.0, 1.0, d)
    ratio_ = at_most(at_least(ratio / tl.load(k + UNIT), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio__ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (f != 0.0), ratio_, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(a + 0, tl.load(k + LR) * ratio__)


@triton.jit
def lars_with_norm_keep_norm_first_answer_1(k, S, n, old, a):
    pp_ = S[2]
    bb = S[3]
    norm_p = root(pp_)
    R = tl.where(old[0] == 0.0, norm_p, old[0])
    norm_b = root(bb)
    longest = at_least(norm_p, tl.load(k + PACE) * norm_b)
    there = (R > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there, (R - tl.where(there, longest, 1.0)) / tl.where(there, longest, 1.0), 0.0)
    f = tl.where(there, R / tl.where(there, longest, 1.0), 1.0)
    short = tl.load(k + PACE) * f
    tl.store(a + 1, f_less_1)
    tl.store(a + 2, short)


@triton.jit
def lars_with_norm_keep_norm_first_answer_2(k, S, n, old, a):
    pp_ = S[2]
    bb = S[3]
    qq = S[4]
    norm = root(qq)
    norm_p = root(pp_)
    cancels = (norm == 0.0) & (norm_p > 0.0)
    R = tl.where(old[0] == 0.0, norm_p, old[0])
    there = (R > 0.0) & (norm_p > 0.0)
    norm_b = root(bb)
    longest = at_least(norm_p, tl.load(k + PACE) * norm_b)
    there_ = (R > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there_, (R - tl.where(there_, longest, 1.0)) / tl.where(there_, longest, 1.0), 0.0)
    first = tl.where(
        cancels, tl.where(there, (R - tl.where(there, norm_p, 1.0)) / tl.where(there, norm_p, 1.0), 0.0), f_less_1
    )
    f = tl.where(there_, R / tl.where(there_, longest, 1.0), 1.0)
    short = tl.load(k + PACE) * f
    second = tl.where(cancels, 0.0, short)
    there__ = (R > 0.0) & (norm > 0.0)
    more = tl.where(there__, (R - tl.where(there__, norm, 1.0)) / tl.where(there__, norm, 1.0), 0.0)
    tl.store(a + 3, first)
    tl.store(a + 4, second)
    tl.store(a + 5, more)


@triton.jit
def lars_with_norm_keep_norm_first_report(k, S, n, old, to):
    pp = S[0]
    xx = S[1]
    norm_p = root(pp)
    norm_x = root(xx)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    f = at_least(norm_x, tl.load(k + TRUST_MIN_NORM))
    d = f + tl.load(k + LAM_W) * unless_off(tl.load(k + LAM_W), w) + tl.load(k + EPS)
    ratio = tl.load(k + ETA) * w / tl.where(f == 0.0, 1.0, d)
    ratio_ = at_most(at_least(ratio / tl.load(k + UNIT), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio__ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (f != 0.0), ratio_, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(to + 0, norm_p)
    tl.store(to + 1, norm_x)
    tl.store(to + 2, ratio__)


@triton.jit
def lars_with_norm_keep_norm_first_remember(k, S, n, old):
    pp_ = S[2]
    norm_p = root(pp_)
    R = tl.where(old[0] == 0.0, norm_p, old[0])
    return (R,)


@triton.jit
def lars_with_norm_keep_norm_first_adapt_false_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    lr = tl.load(k + LR).to(COMPUTE)
    damped = tl.load(k + DAMPED).to(COMPUTE)
    mu = tl.load(k + MU).to(COMPUTE)
    f_less_1 = tl.load(a + 0).to(COMPUTE)
    short = tl.load(a + 1).to(COMPUTE)
    first = tl.load(a + 2).to(COMPUTE)
    second = tl.load(a + 3).to(COMPUTE)
    more = tl.load(a + 4).to(COMPUTE)
    return (l2, lam, lr, damped, mu, f_less_1, short, first, second, more)


@triton.jit
def lars_with_norm_keep_norm_first_adapt_false_terms_0(k, p, g, s):
    l2, lam, lr, damped, mu, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    b_ = damped * u + mu * b
    return (p, b_)


@triton.jit
def lars_with_norm_keep_norm_first_adapt_false_terms_1(k, p, g, s):
    l2, lam, lr, damped, mu, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    b_ = damped * u + mu * b
    q = p + f_less_1 * p - short * b_
    return (q,)


@triton.jit
def lars_with_norm_keep_norm_first_adapt_false_apply(k, p, g, s, x):
    l2, lam, lr, damped, mu, f_less_1, short, first, second, more = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    r = g_ + lam * unless_off(lam, p)
    u = lr * r
    b_ = damped * u + mu * b
    q = p + f_less_1 * p - short * b_
    return (p + first * p - second * b_ + more * q, b_)


@triton.jit
def lars_with_norm_keep_norm_first_adapt_false_answer_0(k, S, n, old, a):
    pp = S[0]
    bb = S[1]
    norm_p = root(pp)
    R = tl.where(old[0] == 0.0, norm_p, old[0])
    norm_b = root(bb)
    longest = at_least(norm_p, tl.load(k + PACE) * norm_b)
    there = (R > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there, (R - tl.where(there, longest, 1.0)) / tl.where(there, longest, 1.0), 0.0)
    f = tl.where(there, R / tl.where(there, longest, 1.0), 1.0)
    short = tl.load(k + PACE) * f
    tl.store(a + 0, f_less_1)
    tl.store(a + 1, short)


@triton.jit
def lars_with_norm_keep_norm_first_adapt_false_answer_1(k, S, n, old, a):
    pp = S[0]
    bb = S[1]
    qq = S[2]
    norm = root(qq)
    norm_p = root(pp)
    cancels = (norm == 0.0) & (norm_p > 0.0)
    R = tl.where(old[0] == 0.0, norm_p, old[0])
    there = (R > 0.0) & (norm_p > 0.0)
    norm_b = root(bb)
    longest = at_least(norm_p, tl.load(k + PACE) * norm_b)
    there_ = (R > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there_, (R - tl.where(there_, longest, 1.0)) / tl.where(there_, longest, 1.0), 0.0)
    first = tl.where(
        cancels, tl.where(there, (R - tl.where(there, norm_p, 1.0)) / tl.where(there, norm_p, 1.0), 0.0), f_less_1
    )
    f = tl.where(there_, R / tl.where(there_, longest, 1.0), 1.0)
    short = tl.load(k + PACE) * f
    second = tl.where(cancels, 0.0, short)
    there__ = (R > 0.0) & (norm > 0.0)
    more = tl.where(there__, (R - tl.where(there__, norm, 1.0)) / tl.where(there__, norm, 1.0), 0.0)
    tl.store(a + 2, first)
    tl.store(a + 3, second)
    tl.store(a + 4, more)


@triton.jit
def lars_with_norm_keep_norm_first_adapt_false_report(k, S, n, old, to):
    tl.store(to + 0, 1.0)


@triton.jit
def lars_with_norm_keep_norm_first_adapt_false_remember(k, S, n, old):
    pp = S[0]
    norm_p = root(pp)
    R = tl.where(old[0] == 0.0, norm_p, old[0])
    return (R,)


PROGRAMS = {
    "Lars": Program(
        states=("momentum_buffer",),
        layer_states=(),
        rounds=(("Squares", "Squares"),),
        keeps=None,
        keep_writes=0,
        apply_writes=1,
        cached=(),
        rereads=True,
        values=lars_values,
        keep=None,
        terms=(lars_terms,),
        apply=lars_apply,
        answers=(lars_answer,),
        report=lars_report,
        remember=None,
    ),
    "LarsNesterovTrue": Program(
        states=("momentum_buffer",),
        layer_states=(),
        rounds=(("Squares", "Squares"),),
        keeps=None,
        keep_writes=0,
        apply_writes=1,
        cached=(),
        rereads=True,
        values=lars_nesterov_true_values,
        keep=None,
        terms=(lars_nesterov_true_terms,),
        apply=lars_nesterov_true_apply,
        answers=(lars_nesterov_true_answer,),
        report=lars_nesterov_true_report,
        remember=None,
    ),
    "LarsAdaptFalse": Program(
        states=("momentum_buffer",),
        layer_states=(),
        rounds=(),
        keeps=None,
        keep_writes=0,
        apply_writes=1,
        cached=(),
        rereads=True,
        values=lars_adapt_false_values,
        keep=None,
        terms=(),
        apply=lars_adapt_false_apply,
        answers=(),
        report=lars_adapt_false_report,
        remember=None,
    ),
    "LarsAdaptFalseNesterovTrue": Program(
        states=("momentum_buffer",),
        layer_states=(),
        rounds=(),
        keeps=None,
        keep_writes=0,
        apply_writes=1,
        cached=(),
        rereads=True,
        values=lars_adapt_false_nesterov_true_values,
        keep=None,
        terms=(),
        apply=lars_adapt_false_nesterov_true_apply,
        answers=(),
        report=lars_adapt_false_nesterov_true_report,
        remember=None,
    ),
    "LarsCautionTrue": Program(
        states=("momentum_buffer",),
        layer_states=(),
        rounds=(("Squares", "Squares"), ("Mean",)),
        keeps=None,
        keep_writes=0,
        apply_writes=1,
        cached=(),
        rereads=True,
        values=lars_caution_true_values,
        keep=None,
        terms=(lars_caution_true_terms_0, lars_caution_true_terms_1),
        apply=lars_caution_true_apply,
        answers=(lars_caution_true_answer_0, lars_caution_true_answer_1),
        report=lars_caution_true_report,
        remember=None,
    ),
    "LarsCautionTrueAdaptFalse": Program(
        states=("momentum_buffer",),
        layer_states=(),
        rounds=(("Mean",),),
        keeps=None,
        keep_writes=0,
        apply_writes=1,
        cached=(),
        rereads=True,
        values=lars_caution_true_adapt_false_values,
        keep=None,
        terms=(lars_caution_true_adapt_false_terms,),
        apply=lars_caution_true_adapt_false_apply,
        answers=(lars_caution_true_adapt_false_answer,),
        report=lars_caution_true_adapt_false_report,
        remember=None,
    ),
    "LarsWithoutMomentumBuffer": Program(
        states=(),
        layer_states=(),
        rounds=(("Squares", "Squares"),),
        keeps=None,
        keep_writes=0,
        apply_writes=0,
        cached=(),
        rereads=True,
        values=lars_without_momentum_buffer_values,
        keep=None,
        terms=(lars_without_momentum_buffer_terms,),
        apply=lars_without_momentum_buffer_apply,
        answers=(lars_without_momentum_buffer_answer,),
        report=lars_without_momentum_buffer_report,
        remember=None,
    ),
    "LarsWithoutMomentumBufferAdaptFalse": Program(
        states=(),
        layer_states=(),
        rounds=(),
        keeps=None,
        keep_writes=0,
        apply_writes=0,
        cached=(),
        rereads=True,
        values=lars_without_momentum_buffer_adapt_false_values,
        keep=None,
        terms=(),
        apply=lars_without_momentum_buffer_adapt_false_apply,
        answers=(),
        report=lars_without_momentum_buffer_adapt_false_report,
        remember=None,
    ),
    "LarsKeepNormTrue": Program(
        states=("momentum_buffer",),
        layer_states=(),
        rounds=(("Squares", "Squares"), ("Squares", "Squares"), ("Squares",)),
        keeps=None,
        keep_writes=0,
        apply_writes=1,
        cached=(),
        rereads=True,
        values=lars_keep_norm_true_values,
        keep=None,
        terms=(lars_keep_norm_true_terms_0, lars_keep_norm_true_terms_1, lars_keep_norm_true_terms_2),
        apply=lars_keep_norm_true_apply,
        answers=(lars_keep_norm_true_answer_0, lars_keep_norm_true_answer_1, lars_keep_norm_true_answer_2),
        report=lars_keep_norm_true_report,
        remember=None,
    ),
    "LarsKeepNormTrueAdaptFalse": Program(
        states=("momentum_buffer",),
        layer_states=(),
        rounds=(("Squares", "Squares"), ("Squares",)),
        keeps=None,
        keep_writes=0,
        apply_writes=1,
        cached=(),
        rereads=True,
        values=lars_keep_norm_true_adapt_false_values,
        keep=None,
        terms=(lars_keep_norm_true_adapt_false_terms_0, lars_keep_norm_true_adapt_false_terms_1),
        apply=lars_keep_norm_true_adapt_false_apply,
        answers=(lars_keep_norm_true_adapt_false_answer_0, lars_keep_norm_true_adapt_false_answer_1),
        report=lars_keep_norm_true_adapt_false_report,
        remember=None,
    ),
    "LarsWithNormKeepNormFirst": Program(
        states=("momentum_buffer",),
        layer_states=("norm",),
        rounds=(("Squares", "Squares"), ("Squares", "Squares"), ("Squares",)),
        keeps=None,
        keep_writes=0,
        apply_writes=1,
        cached=(),
        rereads=True,
        values=lars_with_norm_keep_norm_first_values,
        keep=None,
        terms=(
            lars_with_norm_keep_norm_first_terms_0,
            lars_with_norm_keep_norm_first_terms_1,
            lars_with_norm_keep_norm_first_terms_2,
        ),
        apply=lars_with_norm_keep_norm_first_apply,
        answers=(
            lars_with_norm_keep_norm_first_answer_0,
            lars_with_norm_keep_norm_first_answer_1,
            lars_with_norm_keep_norm_first_answer_2,
        ),
        report=lars_with_norm_keep_norm_first_report,
        remember=lars_with_norm_keep_norm_first_remember,
    ),
    "LarsWithNormKeepNormFirstAdaptFalse": Program(
        states=("momentum_buffer",),
        layer_states=("norm",),
        rounds=(("Squares", "Squares"), ("Squares",)),
        keeps=None,
        keep_writes=0,
        apply_writes=1,
        cached=(),
        rereads=True,
        values=lars_with_norm_keep_norm_first_adapt_false_values,
        keep=None,
        terms=(lars_with_norm_keep_norm_first_adapt_false_terms_0, lars_with_norm_keep_norm_first_adapt_false_terms_1),
        apply=lars_with_norm_keep_norm_first_adapt_false_apply,
        answers=(
            lars_with_norm_keep_norm_first_adapt_false_answer_0,
            lars_with_norm_keep_norm_first_adapt_false_answer_1,
        ),
        report=lars_with_norm_keep_norm_first_adapt_false_report,
        remember=lars_with_norm_keep_norm_first_adapt_false_remember,
    ),
}
