"""The programs of Lans, as device functions.

Printed from rules/lans.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import at_least, at_most, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns
from layerwise.engines.gpu.program import Functions

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
    b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr_r, lr_c, size, step, step_ = k
    m, v = s
    g_ = g / size
    m_ = b1 * m + a1 * g_
    v_ = b2 * v + a2 * (g_ * g_)
    return (m_, v_)

@triton.jit
def terms_0(k, p, g, s):
    return (g,)

@triton.jit
def terms_1(k, p, g, s):
    b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr_r, lr_c, size, step, step_ = k
    m, v = s
    v_hat = c2 * v
    d = root(v_hat + eps_root) + eps
    r = c1 * m / d
    r_ = r + lam * unless_off(lam, p)
    g_ = g / size
    c = g_ / d
    c_ = c + lam * unless_off(lam, p)
    return (p, r_, c_)

@triton.jit
def apply(k, p, g, s, x):
    b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr_r, lr_c, size, step, step_ = k
    m, v = s
    r = x[1]
    c = x[2]
    return (p - step * r - step_ * c, m, v)

@triton.jit
def answer_0(k, S, n, old, a, to):
    norm = root(S[-1])
    size = tl.where(norm == 0.0, 1.0, norm)
    tl.store(a + 0, size)

@triton.jit
def answer_1(k, S, n, old, a, to):
    norm_p = root(S[-3])
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    norm_r = root(S[-2])
    x = at_least(norm_r, tl.load(k + TRUST_MIN_NORM))
    phi = at_most(w, tl.load(k + MAX_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(phi / d, tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_r = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio,
        tl.load(k + TRUST_UNDEFINED)))
    norm_c = root(S[-1])
    y = at_least(norm_c, tl.load(k + TRUST_MIN_NORM))
    d_ = tl.where(y == 0.0, 1.0, y)
    ratio_ = at_most(at_least(phi / d_, tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_c = tl.where(tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (y != 0.0), ratio_,
        tl.load(k + TRUST_UNDEFINED)))
    tl.store(a + 1, tl.load(k + LR_R) * ratio_r)
    tl.store(a + 2, tl.load(k + LR_C) * ratio_c)
    tl.store(to + 0, norm_p)
    tl.store(to + 1, norm_r)
    tl.store(to + 2, ratio_r)

@triton.jit
def apply_adapt_false(k, p, g, s, x):
    b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr_r, lr_c, size, step, step_ = k
    m, v = s
    g_ = g / size
    m_ = b1 * m + a1 * g_
    v_ = b2 * v + a2 * (g_ * g_)
    v_hat = c2 * v_
    d = root(v_hat + eps_root) + eps
    r = c1 * m_ / d
    r_ = r + lam * unless_off(lam, p)
    c = g_ / d
    c_ = c + lam * unless_off(lam, p)
    return (p - lr_r * r_ - lr_c * c_, m_, v_)

@triton.jit
def answer_0_adapt_false(k, S, n, old, a, to):
    norm = root(S[-1])
    size = tl.where(norm == 0.0, 1.0, norm)
    tl.store(a + 0, size)
    tl.store(to + 0, 1.0)

PROGRAMS = {
    "Lans": Functions(values, keep=keep, terms=(terms_0, terms_1), apply=apply, answers=(answer_0, answer_1)),
    "LansAdaptFalse": Functions(values, terms=(terms_0,), apply=apply_adapt_false, answers=(answer_0_adapt_false,)),
}
