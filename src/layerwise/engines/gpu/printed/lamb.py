"""The programs of Lamb, as device functions.

Printed from rules/lamb.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import at_least, at_most, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns
from layerwise.engines.gpu.program import Functions

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
        tl.load(a + 4).to(COMPUTE), tl.load(a + 5).to(COMPUTE), tl.load(a + 6).to(COMPUTE))

@triton.jit
def keep(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, size, size_, f_less_1, short, first, second, more = k
    m, v = s
    g_ = g + l2 * unless_off(l2, p)
    m_ = b1 * m + a1 * g_
    v_ = b2 * v + a2 * (g_ * g_)
    return (m_, v_)

@triton.jit
def terms_0(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, size, size_, f_less_1, short, first, second, more = k
    m, v = s
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    v_hat = c2 * v
    root_v = root(v_hat + eps_root)
    u = m / (eps + c1 * root_v)
    r = u + lam * unless_off(lam, p_)
    return (p_, r)

@triton.jit
def apply(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, size, size_, f_less_1, short, first, second, more = k
    m, v = s
    r = x[1]
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    return (p_ - size * r, m, v)

@triton.jit
def answer_0(k, S, n, old, a, to):
    norm = root(S[-2])
    w = at_least(norm, tl.load(k + TRUST_MIN_NORM))
    norm_ = root(S[-1])
    x = at_least(norm_, tl.load(k + TRUST_MIN_NORM))
    phi = at_most(w, tl.load(k + MAX_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(phi / (d + tl.load(k + TRUST_EPS)), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_ = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio,
        tl.load(k + TRUST_UNDEFINED)))
    size = tl.load(k + LR) * ratio_
    tl.store(a + 0, size)
    tl.store(to + 0, norm)
    tl.store(to + 1, norm_)
    tl.store(to + 2, ratio_)

@triton.jit
def apply_adapt_false(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, size, size_, f_less_1, short, first, second, more = k
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
def answer_0_adapt_false(k, S, n, old, a, to):
    tl.store(to + 0, 1.0)

@triton.jit
def terms_0_caution_true(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, size, size_, f_less_1, short, first, second, more = k
    m, v = s
    v_hat = c2 * v
    root_v = root(v_hat + eps_root)
    u = m / (eps + c1 * root_v)
    g_ = g + l2 * unless_off(l2, p)
    agrees = tl.where(((u > 0.0) & (g_ > 0.0)) | ((u < 0.0) & (g_ < 0.0)), 1.0, 0.0 * u)
    return (agrees,)

@triton.jit
def terms_1_caution_true(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, size, size_, f_less_1, short, first, second, more = k
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
def apply_caution_true(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, size, size_, f_less_1, short, first, second, more = k
    m, v = s
    r = x[1]
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    return (p_ - size_ * r, m, v)

@triton.jit
def answer_0_caution_true(k, S, n, old, a, to):
    share = S[-1] / n
    size = at_least(share, 0.001)
    tl.store(a + 0, size)
    tl.store(to + 3, share)

@triton.jit
def answer_1_caution_true(k, S, n, old, a, to):
    norm = root(S[-2])
    w = at_least(norm, tl.load(k + TRUST_MIN_NORM))
    norm_ = root(S[-1])
    x = at_least(norm_, tl.load(k + TRUST_MIN_NORM))
    phi = at_most(w, tl.load(k + MAX_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(phi / (d + tl.load(k + TRUST_EPS)), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_ = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio,
        tl.load(k + TRUST_UNDEFINED)))
    size = tl.load(k + LR) * ratio_
    tl.store(a + 1, size)
    tl.store(to + 0, norm)
    tl.store(to + 1, norm_)
    tl.store(to + 2, ratio_)

@triton.jit
def apply_caution_true_adapt_false(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, size, size_, f_less_1, short, first, second, more = k
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
def answer_0_caution_true_adapt_false(k, S, n, old, a, to):
    share = S[-1] / n
    size = at_least(share, 0.001)
    tl.store(a + 0, size)
    tl.store(to + 0, 1.0)
    tl.store(to + 1, share)

@triton.jit
def terms_1_keep_norm_true(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, size, size_, f_less_1, short, first, second, more = k
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
def apply_keep_norm_true(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, size, size_, f_less_1, short, first, second, more = k
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
def answer_0_keep_norm_true(k, S, n, old, a, to):
    norm = root(S[-2])
    w = at_least(norm, tl.load(k + TRUST_MIN_NORM))
    norm_ = root(S[-1])
    x = at_least(norm_, tl.load(k + TRUST_MIN_NORM))
    phi = at_most(w, tl.load(k + MAX_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(phi / (d + tl.load(k + TRUST_EPS)), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_ = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio,
        tl.load(k + TRUST_UNDEFINED)))
    size = tl.load(k + LR) * ratio_
    longest = at_least(norm, size * norm_)
    there = (norm > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there, (norm - tl.where(there, longest, 1.0)) / tl.where(there, longest, 1.0), 0.0)
    f = tl.where(there, norm / tl.where(there, longest, 1.0), 1.0)
    short = size * f
    tl.store(a + 2, f_less_1)
    tl.store(a + 3, short)
    tl.store(to + 0, norm)
    tl.store(to + 1, norm_)
    tl.store(to + 2, ratio_)

@triton.jit
def answer_1_keep_norm_true(k, S, n, old, a, to):
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
def answer_0_with_norm_keep_norm_first(k, S, n, old, a, to):
    norm = root(S[-2])
    R = tl.where(old[0] == 0.0, norm, old[0])
    w = at_least(norm, tl.load(k + TRUST_MIN_NORM))
    norm_ = root(S[-1])
    x = at_least(norm_, tl.load(k + TRUST_MIN_NORM))
    phi = at_most(w, tl.load(k + MAX_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(phi / (d + tl.load(k + TRUST_EPS)), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_ = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio,
        tl.load(k + TRUST_UNDEFINED)))
    size = tl.load(k + LR) * ratio_
    longest = at_least(norm, size * norm_)
    there = (R > 0.0) & (longest > 0.0)
    f_less_1 = tl.where(there, (R - tl.where(there, longest, 1.0)) / tl.where(there, longest, 1.0), 0.0)
    f = tl.where(there, R / tl.where(there, longest, 1.0), 1.0)
    short = size * f
    tl.store(a + 2, f_less_1)
    tl.store(a + 3, short)
    tl.store(to + 0, norm)
    tl.store(to + 1, norm_)
    tl.store(to + 2, ratio_)

@triton.jit
def answer_1_with_norm_keep_norm_first(k, S, n, old, a, to):
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
