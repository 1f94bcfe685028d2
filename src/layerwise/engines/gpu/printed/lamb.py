"""The programs of Lamb, as device functions.

Printed from rules/lamb.py by `make generate`: change that, not this file.
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
    SHRINK,
    B1,
    A1,
    B2,
    A2,
    C1,
    C2,
    EPS_ROOT,
    EPS,
    LAM,
    LR,
    TRUST_MIN_NORM,
    TRUST_MAX_NORM,
    TRUST_EPS,
    TRUST_LOW,
    TRUST_HIGH,
    TRUST_UNDEFINED,
    TRUST_ADAPTS,
) = columns(19)


@triton.jit
def lamb_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    shrink = tl.load(k + SHRINK).to(COMPUTE)
    b1 = tl.load(k + B1).to(COMPUTE)
    a1 = tl.load(k + A1).to(COMPUTE)
    b2 = tl.load(k + B2).to(COMPUTE)
    a2 = tl.load(k + A2).to(COMPUTE)
    c1 = tl.load(k + C1).to(COMPUTE)
    c2 = tl.load(k + C2).to(COMPUTE)
    eps_root = tl.load(k + EPS_ROOT).to(COMPUTE)
    eps = tl.load(k + EPS).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    size = tl.load(a + 0).to(COMPUTE)
    return (l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, size)


@triton.jit
def lamb_keep(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, size = k
    m, v = s
    g_ = g + l2 * unless_off(l2, p)
    m_ = b1 * m + a1 * g_
    v_ = b2 * v + a2 * (g_ * g_)
    return (m_, v_)


@triton.jit
def lamb_terms(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, size = k
    m, v = s
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    v_hat = c2 * v
    root_v = root(v_hat + eps_root)
    u = m / (eps + c1 * root_v)
    r = u + lam * unless_off(lam, p_)
    return (p_, r)


@triton.jit
def lamb_apply(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, size = k
    m, v = s
    r = x[1]
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    return (p_ - size * r, m, v)


@triton.jit
def lamb_answer(k, S, n, old, a):
    pp = S[0]
    rr = S[1]
    norm_p = root(pp)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    norm_r = root(rr)
    x = at_least(norm_r, tl.load(k + TRUST_MIN_NORM))
    phi = at_most(w, tl.load(k + TRUST_MAX_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(phi / (d + tl.load(k + TRUST_EPS)), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio, tl.load(k + TRUST_UNDEFINED))
    )
    size = tl.load(k + LR) * ratio_
    tl.store(a + 0, size)


@triton.jit
def lamb_report(k, S, n, old, to):
    pp = S[0]
    rr = S[1]
    norm_p = root(pp)
    norm_r = root(rr)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    x = at_least(norm_r, tl.load(k + TRUST_MIN_NORM))
    phi = at_most(w, tl.load(k + TRUST_MAX_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(phi / (d + tl.load(k + TRUST_EPS)), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(to + 0, norm_p)
    tl.store(to + 1, norm_r)
    tl.store(to + 2, ratio_)


@triton.jit
def lamb_adapt_false_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    shrink = tl.load(k + SHRINK).to(COMPUTE)
    b1 = tl.load(k + B1).to(COMPUTE)
    a1 = tl.load(k + A1).to(COMPUTE)
    b2 = tl.load(k + B2).to(COMPUTE)
    a2 = tl.load(k + A2).to(COMPUTE)
    c1 = tl.load(k + C1).to(COMPUTE)
    c2 = tl.load(k + C2).to(COMPUTE)
    eps_root = tl.load(k + EPS_ROOT).to(COMPUTE)
    eps = tl.load(k + EPS).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    lr = tl.load(k + LR).to(COMPUTE)
    return (l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr)


@triton.jit
def lamb_adapt_false_apply(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr = k
    m, v = s
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    g_ = g + l2 * unless_off(l2, p)
    m_ = b1 * m + a1 * g_
    v_ = b2 * v + a2 * (g_ * g_)
    v_hat = c2 * v_
    root_v = root(v_hat + eps_root)
    u = m_ / (eps + c1 * root_v)
    r = u + lam * unless_off(lam, p_)
    return (p_ - lr * r, m_, v_)


@triton.jit
def lamb_adapt_false_report(k, S, n, old, to):
    tl.store(to + 0, 1.0)


@triton.jit
def lamb_caution_true_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    shrink = tl.load(k + SHRINK).to(COMPUTE)
    b1 = tl.load(k + B1).to(COMPUTE)
    a1 = tl.load(k + A1).to(COMPUTE)
    b2 = tl.load(k + B2).to(COMPUTE)
    a2 = tl.load(k + A2).to(COMPUTE)
    c1 = tl.load(k + C1).to(COMPUTE)
    c2 = tl.load(k + C2).to(COMPUTE)
    eps_root = tl.load(k + EPS_ROOT).to(COMPUTE)
    eps = tl.load(k + EPS).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    size = tl.load(a + 0).to(COMPUTE)
    size_ = tl.load(a + 1).to(COMPUTE)
    return (l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, size, size_)


@triton.jit
def lamb_caution_true_keep(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, size, size_ = k
    m, v = s
    g_ = g + l2 * unless_off(l2, p)
    m_ = b1 * m + a1 * g_
    v_ = b2 * v + a2 * (g_ * g_)
    return (m_, v_)


@triton.jit
def lamb_caution_true_terms_0(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, size, size_ = k
    m, v = s
    v_hat = c2 * v
    root_v = root(v_hat + eps_root)
    u = m / (eps + c1 * root_v)
    g_ = g + l2 * unless_off(l2, p)
    agrees = tl.where(((u > 0.0) & (g_ > 0.0)) | ((u < 0.0) & (g_ < 0.0)), 1.0, 0.0 * u)
    return (agrees,)


@triton.jit
def lamb_caution_true_terms_1(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, size, size_ = k
    m, v = s
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    v_hat = c2 * v
    root_v = root(v_hat + eps_root)
    u = m / (eps + c1 * root_v)
    g_ = g + l2 * unless_off(l2, p)
    agrees = tl.where(((u > 0.0) & (g_ > 0.0)) | ((u < 0.0) & (g_ < 0.0)), 1.0, 0.0 * u)
    u_ = u * agrees / size
    r = u_ + lam * unless_off(lam, p_)
    return (p_, r)


@triton.jit
def lamb_caution_true_apply(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, size, size_ = k
    m, v = s
    r = x[1]
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    return (p_ - size_ * r, m, v)


@triton.jit
def lamb_caution_true_answer_0(k, S, n, old, a):
    share = S[0] / n
    size = at_least(share, 0.001)
    tl.store(a + 0, size)


@triton.jit
def lamb_caution_true_answer_1(k, S, n, old, a):
    pp = S[1]
    rr = S[2]
    norm_p = root(pp)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    norm_r = root(rr)
    x = at_least(norm_r, tl.load(k + TRUST_MIN_NORM))
    phi = at_most(w, tl.load(k + TRUST_MAX_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(phi / (d + tl.load(k + TRUST_EPS)), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio, tl.load(k + TRUST_UNDEFINED))
    )
    size = tl.load(k + LR) * ratio_
    tl.store(a + 1, size)


@triton.jit
def lamb_caution_true_report(k, S, n, old, to):
    share = S[0] / n
    pp = S[1]
    rr = S[2]
    norm_p = root(pp)
    norm_r = root(rr)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    x = at_least(norm_r, tl.load(k + TRUST_MIN_NORM))
    phi = at_most(w, tl.load(k + TRUST_MAX_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(phi / (d + tl.load(k + TRUST_EPS)), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(to + 0, norm_p)
    tl.store(to + 1, norm_r)
    tl.store(to + 2, ratio_)
    tl.store(to + 3, share)


@triton.jit
def lamb_caution_true_adapt_false_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    shrink = tl.load(k + SHRINK).to(COMPUTE)
    b1 = tl.load(k + B1).to(COMPUTE)
    a1 = tl.load(k + A1).to(COMPUTE)
    b2 = tl.load(k + B2).to(COMPUTE)
    a2 = tl.load(k + A2).to(COMPUTE)
    c1 = tl.load(k + C1).to(COMPUTE)
    c2 = tl.load(k + C2).to(COMPUTE)
    eps_root = tl.load(k + EPS_ROOT).to(COMPUTE)
    eps = tl.load(k + EPS).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    lr = tl.load(k + LR).to(COMPUTE)
    size = tl.load(a + 0).to(COMPUTE)
    return (l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, size)


@triton.jit
def lamb_caution_true_adapt_false_keep(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, size = k
    m, v = s
    g_ = g + l2 * unless_off(l2, p)
    m_ = b1 * m + a1 * g_
    v_ = b2 * v + a2 * (g_ * g_)
    return (m_, v_)


@triton.jit
def lamb_caution_true_adapt_false_terms(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, size = k
    m, v = s
    v_hat = c2 * v
    root_v = root(v_hat + eps_root)
    u = m / (eps + c1 * root_v)
    g_ = g + l2 * unless_off(l2, p)
    agrees = tl.where(((u > 0.0) & (g_ > 0.0)) | ((u < 0.0) & (g_ < 0.0)), 1.0, 0.0 * u)
    return (agrees,)


@triton.jit
def lamb_caution_true_adapt_false_apply(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, size = k
    m, v = s
    agrees = x[0]
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    v_hat = c2 * v
    root_v = root(v_hat + eps_root)
    u = m / (eps + c1 * root_v)
    u_ = u * agrees / size
    r = u_ + lam * unless_off(lam, p_)
    return (p_ - lr * r, m, v)


@triton.jit
def lamb_caution_true_adapt_false_answer(k, S, n, old, a):
    share = S[0] / n
    size = at_least(share, 0.001)
    tl.store(a + 0, size)


@triton.jit
def lamb_caution_true_adapt_false_report(k, S, n, old, to):
    share = S[0] / n
    tl.store(to + 0, 1.0)
    tl.store(to + 1, share)


@triton.jit
def lamb_keep_norm_true_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    shrink = tl.load(k + SHRINK).to(COMPUTE)
    b1 = tl.load(k + B1).to(COMPUTE)
    a1 = tl.load(k + A1).to(COMPUTE)
    b2 = tl.load(k + B2).to(COMPUTE)
    a2 = tl.load(k + A2).to(COMPUTE)
    c1 = tl.load(k + C1).to(COMPUTE)
    c2 = tl.load(k + C2).to(COMPUTE)
    eps_root = tl.load(k + EPS_ROOT).to(COMPUTE)
    eps = tl.load(k + EPS).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    f_less_1 = tl.load(a + 0).to(COMPUTE)
    short = tl.load(a + 1).to(COMPUTE)
    first = tl.load(a + 2).to(COMPUTE)
    second = tl.load(a + 3).to(COMPUTE)
    more = tl.load(a + 4).to(COMPUTE)
    return (l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, f_less_1, short, first, second, more)


@triton.jit
def lamb_keep_norm_true_keep(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, f_less_1, short, first, second, more = k
    m, v = s
    g_ = g + l2 * unless_off(l2, p)
    m_ = b1 * m + a1 * g_
    v_ = b2 * v + a2 * (g_ * g_)
    return (m_, v_)


@triton.jit
def lamb_keep_norm_true_terms_0(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, f_less_1, short, first, second, more = k
    m, v = s
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    v_hat = c2 * v
    root_v = root(v_hat + eps_root)
    u = m / (eps + c1 * root_v)
    r = u + lam * unless_off(lam, p_)
    return (p_, r)


@triton.jit
def lamb_keep_norm_true_terms_1(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, f_less_1, short, first, second, more = k
    m, v = s
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    v_hat = c2 * v
    root_v = root(v_hat + eps_root)
    u = m / (eps + c1 * root_v)
    r = u + lam * unless_off(lam, p_)
    q = p_ + f_less_1 * p_ - short * r
    return (q,)


@triton.jit
def lamb_keep_norm_true_apply(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, f_less_1, short, first, second, more = k
    m, v = s
    q = x[0]
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    v_hat = c2 * v
    root_v = root(v_hat + eps_root)
    u = m / (eps + c1 * root_v)
    r = u + lam * unless_off(lam, p_)
    return (p + first * p_ - second * r + more * q, m, v)


@triton.jit
def lamb_keep_norm_true_answer_0(k, S, n, old, a):
    pp = S[0]
    rr = S[1]
    norm_p = root(pp)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    norm_r = root(rr)
    x = at_least(norm_r, tl.load(k + TRUST_MIN_NORM))
    phi = at_most(w, tl.load(k + TRUST_MAX_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(phi / (d + tl.load(k + TRUST_EPS)), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio, tl.load(k + TRUST_UNDEFINED))
    )
    size = tl.load(k + LR) * ratio_
    longest = at_least(norm_p, size * norm_r)
    there = (norm_p > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there, (norm_p - tl.where(there, longest, 1.0)) / tl.where(there, longest, 1.0), 0.0)
    f = tl.where(there, norm_p / tl.where(there, longest, 1.0), 1.0)
    short = size * f
    tl.store(a + 0, f_less_1)
    tl.store(a + 1, short)


@triton.jit
def lamb_keep_norm_true_answer_1(k, S, n, old, a):
    pp = S[0]
    rr = S[1]
    qq = S[2]
    norm = root(qq)
    norm_p = root(pp)
    cancels = (norm == 0.0) & (norm_p > 0.0)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    norm_r = root(rr)
    x = at_least(norm_r, tl.load(k + TRUST_MIN_NORM))
    phi = at_most(w, tl.load(k + TRUST_MAX_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(phi / (d + tl.load(k + TRUST_EPS)), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio, tl.load(k + TRUST_UNDEFINED))
    )
    size = tl.load(k + LR) * ratio_
    longest = at_least(norm_p, size * norm_r)
    there = (norm_p > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there, (norm_p - tl.where(there, longest, 1.0)) / tl.where(there, longest, 1.0), 0.0)
    first = tl.where(cancels, 0.0, f_less_1)
    f = tl.where(there, norm_p / tl.where(there, longest, 1.0), 1.0)
    short = size * f
    second = tl.where(cancels, 0.0, short)
    there_ = (norm_p > 0.0) & (norm > 0.0)
    more = tl.where(there_, (norm_p - tl.where(there_, norm, 1.0)) / tl.where(there_, norm, 1.0), 0.0)
    tl.store(a + 2, first)
    tl.store(a + 3, second)
    tl.store(a + 4, more)


@triton.jit
def lamb_keep_norm_true_report(k, S, n, old, to):
    pp = S[0]
    rr = S[1]
    norm_p = root(pp)
    norm_r = root(rr)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    x = at_least(norm_r, tl.load(k + TRUST_MIN_NORM))
    phi = at_most(w, tl.load(k + TRUST_MAX_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(phi / (d + tl.load(k + TRUST_EPS)), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(to + 0, norm_p)
    tl.store(to + 1, norm_r)
    tl.store(to + 2, ratio_)


@triton.jit
def lamb_with_norm_keep_norm_first_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    shrink = tl.load(k + SHRINK).to(COMPUTE)
    b1 = tl.load(k + B1).to(COMPUTE)
    a1 = tl.load(k + A1).to(COMPUTE)
    b2 = tl.load(k + B2).to(COMPUTE)
    a2 = tl.load(k + A2).to(COMPUTE)
    c1 = tl.load(k + C1).to(COMPUTE)
    c2 = tl.load(k + C2).to(COMPUTE)
    eps_root = tl.load(k + EPS_ROOT).to(COMPUTE)
    eps = tl.load(k + EPS).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    f_less_1 = tl.load(a + 0).to(COMPUTE)
    short = tl.load(a + 1).to(COMPUTE)
    first = tl.load(a + 2).to(COMPUTE)
    second = tl.load(a + 3).to(COMPUTE)
    more = tl.load(a + 4).to(COMPUTE)
    return (l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, f_less_1, short, first, second, more)


@triton.jit
def lamb_with_norm_keep_norm_first_keep(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, f_less_1, short, first, second, more = k
    m, v = s
    g_ = g + l2 * unless_off(l2, p)
    m_ = b1 * m + a1 * g_
    v_ = b2 * v + a2 * (g_ * g_)
    return (m_, v_)


@triton.jit
def lamb_with_norm_keep_norm_first_terms_0(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, f_less_1, short, first, second, more = k
    m, v = s
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    v_hat = c2 * v
    root_v = root(v_hat + eps_root)
    u = m / (eps + c1 * root_v)
    r = u + lam * unless_off(lam, p_)
    return (p_, r)


@triton.jit
def lamb_with_norm_keep_norm_first_terms_1(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, f_less_1, short, first, second, more = k
    m, v = s
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    v_hat = c2 * v
    root_v = root(v_hat + eps_root)
    u = m / (eps + c1 * root_v)
    r = u + lam * unless_off(lam, p_)
    q = p_ + f_less_1 * p_ - short * r
    return (q,)


@triton.jit
def lamb_with_norm_keep_norm_first_apply(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, f_less_1, short, first, second, more = k
    m, v = s
    q = x[0]
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    v_hat = c2 * v
    root_v = root(v_hat + eps_root)
    u = m / (eps + c1 * root_v)
    r = u + lam * unless_off(lam, p_)
    return (p + first * p_ - second * r + more * q, m, v)


@triton.jit
def lamb_with_norm_keep_norm_first_answer_0(k, S, n, old, a):
    pp = S[0]
    rr = S[1]
    norm_p = root(pp)
    R = tl.where(old[0] == 0.0, norm_p, old[0])
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    norm_r = root(rr)
    x = at_least(norm_r, tl.load(k + TRUST_MIN_NORM))
    phi = at_most(w, tl.load(k + TRUST_MAX_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(phi / (d + tl.load(k + TRUST_EPS)), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio, tl.load(k + TRUST_UNDEFINED))
    )
    size = tl.load(k + LR) * ratio_
    longest = at_least(norm_p, size * norm_r)
    there = (R > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there, (R - tl.where(there, longest, 1.0)) / tl.where(there, longest, 1.0), 0.0)
    f = tl.where(there, R / tl.where(there, longest, 1.0), 1.0)
    short = size * f
    tl.store(a + 0, f_less_1)
    tl.store(a + 1, short)


@triton.jit
def lamb_with_norm_keep_norm_first_answer_1(k, S, n, old, a):
    pp = S[0]
    rr = S[1]
    qq = S[2]
    norm = root(qq)
    norm_p = root(pp)
    cancels = (norm == 0.0) & (norm_p > 0.0)
    R = tl.where(old[0] == 0.0, norm_p, old[0])
    there = (R > 0.0) & (norm_p > 0.0)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    norm_r = root(rr)
    x = at_least(norm_r, tl.load(k + TRUST_MIN_NORM))
    phi = at_most(w, tl.load(k + TRUST_MAX_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(phi / (d + tl.load(k + TRUST_EPS)), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio, tl.load(k + TRUST_UNDEFINED))
    )
    size = tl.load(k + LR) * ratio_
    longest = at_least(norm_p, size * norm_r)
    there_ = (R > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there_, (R - tl.where(there_, longest, 1.0)) / tl.where(there_, longest, 1.0), 0.0)
    first = tl.where(
        cancels, tl.where(there, (R - tl.where(there, norm_p, 1.0)) / tl.where(there, norm_p, 1.0), 0.0), f_less_1
    )
    f = tl.where(there_, R / tl.where(there_, longest, 1.0), 1.0)
    short = size * f
    second = tl.where(cancels, 0.0, short)
    there__ = (R > 0.0) & (norm > 0.0)
    more = tl.where(there__, (R - tl.where(there__, norm, 1.0)) / tl.where(there__, norm, 1.0), 0.0)
    tl.store(a + 2, first)
    tl.store(a + 3, second)
    tl.store(a + 4, more)


@triton.jit
def lamb_with_norm_keep_norm_first_report(k, S, n, old, to):
    pp = S[0]
    rr = S[1]
    norm_p = root(pp)
    norm_r = root(rr)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    x = at_least(norm_r, tl.load(k + TRUST_MIN_NORM))
    phi = at_most(w, tl.load(k + TRUST_MAX_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(phi / (d + tl.load(k + TRUST_EPS)), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_ = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(to + 0, norm_p)
    tl.store(to + 1, norm_r)
    tl.store(to + 2, ratio_)


@triton.jit
def lamb_with_norm_keep_norm_first_remember(k, S, n, old):
    pp = S[0]
    norm_p = root(pp)
    R = tl.where(old[0] == 0.0, norm_p, old[0])
    return (R,)


PROGRAMS = {
    "Lamb": Program(
        states=("exp_avg", "exp_avg_sq"),
        layer_states=(),
        rounds=(("Squares", "Squares"),),
        keeps=0,
        keep_writes=3,
        apply_writes=0,
        cached=(1,),
        rereads=False,
        values=lamb_values,
        keep=lamb_keep,
        terms=(lamb_terms,),
        apply=lamb_apply,
        answers=(lamb_answer,),
        report=lamb_report,
        remember=None,
    ),
    "LambAdaptFalse": Program(
        states=("exp_avg", "exp_avg_sq"),
        layer_states=(),
        rounds=(),
        keeps=None,
        keep_writes=0,
        apply_writes=3,
        cached=(),
        rereads=True,
        values=lamb_adapt_false_values,
        keep=None,
        terms=(),
        apply=lamb_adapt_false_apply,
        answers=(),
        report=lamb_adapt_false_report,
        remember=None,
    ),
    "LambCautionTrue": Program(
        states=("exp_avg", "exp_avg_sq"),
        layer_states=(),
        rounds=(("Mean",), ("Squares", "Squares")),
        keeps=0,
        keep_writes=3,
        apply_writes=0,
        cached=(1,),
        rereads=True,
        values=lamb_caution_true_values,
        keep=lamb_caution_true_keep,
        terms=(lamb_caution_true_terms_0, lamb_caution_true_terms_1),
        apply=lamb_caution_true_apply,
        answers=(lamb_caution_true_answer_0, lamb_caution_true_answer_1),
        report=lamb_caution_true_report,
        remember=None,
    ),
    "LambCautionTrueAdaptFalse": Program(
        states=("exp_avg", "exp_avg_sq"),
        layer_states=(),
        rounds=(("Mean",),),
        keeps=0,
        keep_writes=3,
        apply_writes=0,
        cached=(0,),
        rereads=True,
        values=lamb_caution_true_adapt_false_values,
        keep=lamb_caution_true_adapt_false_keep,
        terms=(lamb_caution_true_adapt_false_terms,),
        apply=lamb_caution_true_adapt_false_apply,
        answers=(lamb_caution_true_adapt_false_answer,),
        report=lamb_caution_true_adapt_false_report,
        remember=None,
    ),
    "LambKeepNormTrue": Program(
        states=("exp_avg", "exp_avg_sq"),
        layer_states=(),
        rounds=(("Squares", "Squares"), ("Squares",)),
        keeps=0,
        keep_writes=3,
        apply_writes=0,
        cached=(0,),
        rereads=False,
        values=lamb_keep_norm_true_values,
        keep=lamb_keep_norm_true_keep,
        terms=(lamb_keep_norm_true_terms_0, lamb_keep_norm_true_terms_1),
        apply=lamb_keep_norm_true_apply,
        answers=(lamb_keep_norm_true_answer_0, lamb_keep_norm_true_answer_1),
        report=lamb_keep_norm_true_report,
        remember=None,
    ),
    "LambWithNormKeepNormFirst": Program(
        states=("exp_avg", "exp_avg_sq"),
        layer_states=("norm",),
        rounds=(("Squares", "Squares"), ("Squares",)),
        keeps=0,
        keep_writes=3,
        apply_writes=0,
        cached=(0,),
        rereads=False,
        values=lamb_with_norm_keep_norm_first_values,
        keep=lamb_with_norm_keep_norm_first_keep,
        terms=(lamb_with_norm_keep_norm_first_terms_0, lamb_with_norm_keep_norm_first_terms_1),
        apply=lamb_with_norm_keep_norm_first_apply,
        answers=(lamb_with_norm_keep_norm_first_answer_0, lamb_with_norm_keep_norm_first_answer_1),
        report=lamb_with_norm_keep_norm_first_report,
        remember=lamb_with_norm_keep_norm_first_remember,
    ),
}
