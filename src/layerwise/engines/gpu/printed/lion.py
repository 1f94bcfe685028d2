"""The programs of Lion, as device functions.

Printed from rules/lion.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import at_least, at_most, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns
from layerwise.engines.gpu.program import Functions

# The numbers that are known before a tensor is read.
L2, SHRINK, B1, A1, B2, A2, LAM, LR, TRUST_MIN_NORM, TRUST_LOW, TRUST_HIGH, TRUST_UNDEFINED, TRUST_ADAPTS = columns(13)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + L2).to(COMPUTE), tl.load(k + SHRINK).to(COMPUTE), tl.load(k + B1).to(COMPUTE),
        tl.load(k + A1).to(COMPUTE), tl.load(k + B2).to(COMPUTE), tl.load(k + A2).to(COMPUTE),
        tl.load(k + LAM).to(COMPUTE), tl.load(k + LR).to(COMPUTE), tl.load(a + 0).to(COMPUTE),
        tl.load(a + 1).to(COMPUTE))

@triton.jit
def apply(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, lam, lr, size, size_ = k
    (m,) = s
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    g_ = g + l2 * unless_off(l2, p)
    x__ = a1 * g_ + b1 * m
    u = tl.where(x__ > 0.0, 1.0, tl.where(x__ < 0.0, -1.0, x__))
    r = u + lam * unless_off(lam, p_)
    m_ = b2 * m + a2 * g_
    return (p_ - lr * r, m_)

@triton.jit
def answer_0(k, S, n, old, a, to):
    tl.store(to + 0, 1.0)

@triton.jit
def terms_0_adapt_true(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, lam, lr, size, size_ = k
    (m,) = s
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    g_ = g + l2 * unless_off(l2, p)
    x__ = a1 * g_ + b1 * m
    u = tl.where(x__ > 0.0, 1.0, tl.where(x__ < 0.0, -1.0, x__))
    r = u + lam * unless_off(lam, p_)
    return (p_, r)

@triton.jit
def apply_adapt_true(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, lam, lr, size, size_ = k
    (m,) = s
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    g_ = g + l2 * unless_off(l2, p)
    x__ = a1 * g_ + b1 * m
    u = tl.where(x__ > 0.0, 1.0, tl.where(x__ < 0.0, -1.0, x__))
    r = u + lam * unless_off(lam, p_)
    m_ = b2 * m + a2 * g_
    return (p_ - size * r, m_)

@triton.jit
def answer_0_adapt_true(k, S, n, old, a, to):
    norm = root(S[-2])
    w = at_least(norm, tl.load(k + TRUST_MIN_NORM))
    norm_ = root(S[-1])
    x = at_least(norm_, tl.load(k + TRUST_MIN_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(w / d, tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_ = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio,
        tl.load(k + TRUST_UNDEFINED)))
    size = tl.load(k + LR) * ratio_
    tl.store(a + 0, size)
    tl.store(to + 0, norm)
    tl.store(to + 1, norm_)
    tl.store(to + 2, ratio_)

@triton.jit
def terms_0_caution_true(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, lam, lr, size, size_ = k
    (m,) = s
    g_ = g + l2 * unless_off(l2, p)
    x_ = a1 * g_ + b1 * m
    u = tl.where(x_ > 0.0, 1.0, tl.where(x_ < 0.0, -1.0, x_))
    agrees = tl.where(((u > 0.0) & (g_ > 0.0)) | ((u < 0.0) & (g_ < 0.0)), 1.0, 0.0 * u)
    return (agrees,)

@triton.jit
def apply_caution_true(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, lam, lr, size, size_ = k
    (m,) = s
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    g_ = g + l2 * unless_off(l2, p)
    x__ = a1 * g_ + b1 * m
    u = tl.where(x__ > 0.0, 1.0, tl.where(x__ < 0.0, -1.0, x__))
    agrees = tl.where(((u > 0.0) & (g_ > 0.0)) | ((u < 0.0) & (g_ < 0.0)), 1.0, 0.0 * u)
    u_ = u * agrees / size
    r = u_ + lam * unless_off(lam, p_)
    m_ = b2 * m + a2 * g_
    return (p_ - lr * r, m_)

@triton.jit
def answer_0_caution_true(k, S, n, old, a, to):
    share = S[-1] / n
    size = at_least(share, 0.001)
    tl.store(a + 0, size)
    tl.store(to + 0, 1.0)
    tl.store(to + 1, share)

@triton.jit
def terms_1_caution_true_adapt_true(k, p, g, s):
    l2, shrink, b1, a1, b2, a2, lam, lr, size, size_ = k
    (m,) = s
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    g_ = g + l2 * unless_off(l2, p)
    x__ = a1 * g_ + b1 * m
    u = tl.where(x__ > 0.0, 1.0, tl.where(x__ < 0.0, -1.0, x__))
    agrees = tl.where(((u > 0.0) & (g_ > 0.0)) | ((u < 0.0) & (g_ < 0.0)), 1.0, 0.0 * u)
    u_ = u * agrees / size
    r = u_ + lam * unless_off(lam, p_)
    return (p_, r)

@triton.jit
def apply_caution_true_adapt_true(k, p, g, s, x):
    l2, shrink, b1, a1, b2, a2, lam, lr, size, size_ = k
    (m,) = s
    r = x[1]
    x_ = unless_off(shrink, p)
    p_ = p - shrink * x_
    g_ = g + l2 * unless_off(l2, p)
    m_ = b2 * m + a2 * g_
    return (p_ - size_ * r, m_)

@triton.jit
def answer_0_caution_true_adapt_true(k, S, n, old, a, to):
    share = S[-1] / n
    size = at_least(share, 0.001)
    tl.store(a + 0, size)
    tl.store(to + 3, share)

@triton.jit
def answer_1_caution_true_adapt_true(k, S, n, old, a, to):
    norm = root(S[-2])
    w = at_least(norm, tl.load(k + TRUST_MIN_NORM))
    norm_ = root(S[-1])
    x = at_least(norm_, tl.load(k + TRUST_MIN_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(w / d, tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_ = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio,
        tl.load(k + TRUST_UNDEFINED)))
    size = tl.load(k + LR) * ratio_
    tl.store(a + 1, size)
    tl.store(to + 0, norm)
    tl.store(to + 1, norm_)
    tl.store(to + 2, ratio_)

PROGRAMS = {
    "Lion": Functions(values, apply=apply, answers=(answer_0,)),
    "LionAdaptTrue": Functions(values, terms=(terms_0_adapt_true,), apply=apply_adapt_true,
        answers=(answer_0_adapt_true,)),
    "LionCautionTrue": Functions(values, terms=(terms_0_caution_true,), apply=apply_caution_true,
        answers=(answer_0_caution_true,)),
    "LionCautionTrueAdaptTrue": Functions(values, terms=(terms_0_caution_true, terms_1_caution_true_adapt_true),
        apply=apply_caution_true_adapt_true, answers=(answer_0_caution_true_adapt_true,
        answer_1_caution_true_adapt_true)),
}
