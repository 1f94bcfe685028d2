"""The programs of Lans, as device functions.

Printed from rules/lans.py by `make generate`: change that, not this file.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import at_least, at_most, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns
from layerwise.engines.gpu.program import Program

# The numbers that are known before a tensor is read.
(
    B1,
    A1,
    B2,
    A2,
    C1,
    C2,
    EPS_ROOT,
    EPS,
    LAM,
    LR_R,
    LR_C,
    TRUST_MIN_NORM,
    TRUST_MAX_NORM,
    TRUST_EPS,
    TRUST_LOW,
    TRUST_HIGH,
    TRUST_UNDEFINED,
    TRUST_ADAPTS,
) = columns(18)


@triton.jit
def lans_values(k, a, COMPUTE: tl.constexpr):
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
    step = tl.load(a + 1).to(COMPUTE)
    step_ = tl.load(a + 2).to(COMPUTE)
    return (b1, a1, b2, a2, c1, c2, eps_root, eps, lam, size, step, step_)


@triton.jit
def lans_keep(k, p, g, s):
    b1, a1, b2, a2, c1, c2, eps_root, eps, lam, size, step, step_ = k
    m, v = s
    g_ = g / size
    m_ = b1 * m + a1 * g_
    v_ = b2 * v + a2 * (g_ * g_)
    return (m_, v_)


@triton.jit
def lans_terms_0(k, p, g, s):
    return (g,)


@triton.jit
def lans_terms_1(k, p, g, s):
    b1, a1, b2, a2, c1, c2, eps_root, eps, lam, size, step, step_ = k
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
def lans_apply(k, p, g, s, x):
    b1, a1, b2, a2, c1, c2, eps_root, eps, lam, size, step, step_ = k
    m, v = s
    r = x[1]
    c = x[2]
    return (p - step * r - step_ * c, m, v)


@triton.jit
def lans_answer_0(k, S, n, old, a):
    gg = S[0]
    norm = root(gg)
    size = tl.where(norm == 0.0, 1.0, norm)
    tl.store(a + 0, size)


@triton.jit
def lans_answer_1(k, S, n, old, a):
    pp = S[1]
    rr = S[2]
    cc = S[3]
    norm_p = root(pp)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    norm_r = root(rr)
    x = at_least(norm_r, tl.load(k + TRUST_MIN_NORM))
    phi = at_most(w, tl.load(k + TRUST_MAX_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(phi / (d + tl.load(k + TRUST_EPS)), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_r = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio, tl.load(k + TRUST_UNDEFINED))
    )
    norm_c = root(cc)
    y = at_least(norm_c, tl.load(k + TRUST_MIN_NORM))
    d_ = tl.where(y == 0.0, 1.0, y)
    ratio_ = at_most(at_least(phi / (d_ + tl.load(k + TRUST_EPS)), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_c = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (y != 0.0), ratio_, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(a + 1, tl.load(k + LR_R) * ratio_r)
    tl.store(a + 2, tl.load(k + LR_C) * ratio_c)


@triton.jit
def lans_report(k, S, n, old, to):
    pp = S[1]
    rr = S[2]
    norm_p = root(pp)
    norm_r = root(rr)
    w = at_least(norm_p, tl.load(k + TRUST_MIN_NORM))
    x = at_least(norm_r, tl.load(k + TRUST_MIN_NORM))
    phi = at_most(w, tl.load(k + TRUST_MAX_NORM))
    d = tl.where(x == 0.0, 1.0, x)
    ratio = at_most(at_least(phi / (d + tl.load(k + TRUST_EPS)), tl.load(k + TRUST_LOW)), tl.load(k + TRUST_HIGH))
    ratio_r = tl.where(
        tl.load(k + TRUST_ADAPTS) == 0.0, 1.0, tl.where((w != 0.0) & (x != 0.0), ratio, tl.load(k + TRUST_UNDEFINED))
    )
    tl.store(to + 0, norm_p)
    tl.store(to + 1, norm_r)
    tl.store(to + 2, ratio_r)


@triton.jit
def lans_adapt_false_values(k, a, COMPUTE: tl.constexpr):
    b1 = tl.load(k + B1).to(COMPUTE)
    a1 = tl.load(k + A1).to(COMPUTE)
    b2 = tl.load(k + B2).to(COMPUTE)
    a2 = tl.load(k + A2).to(COMPUTE)
    c1 = tl.load(k + C1).to(COMPUTE)
    c2 = tl.load(k + C2).to(COMPUTE)
    eps_root = tl.load(k + EPS_ROOT).to(COMPUTE)
    eps = tl.load(k + EPS).to(COMPUTE)
    lam = tl.load(k + LAM).to(COMPUTE)
    lr_r = tl.load(k + LR_R).to(COMPUTE)
    lr_c = tl.load(k + LR_C).to(COMPUTE)
    size = tl.load(a + 0).to(COMPUTE)
    return (b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr_r, lr_c, size)


@triton.jit
def lans_adapt_false_terms(k, p, g, s):
    return (g,)


@triton.jit
def lans_adapt_false_apply(k, p, g, s, x):
    b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr_r, lr_c, size = k
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
def lans_adapt_false_answer(k, S, n, old, a):
    gg = S[0]
    norm = root(gg)
    size = tl.where(norm == 0.0, 1.0, norm)
    tl.store(a + 0, size)


@triton.jit
def lans_adapt_false_report(k, S, n, old, to):
    tl.store(to + 0, 1.0)


PROGRAMS = {
    "Lans": Program(
        states=("exp_avg", "exp_avg_sq"),
        layer_states=(),
        rounds=(("Squares",), ("Squares", "Squares", "Squares")),
        keeps=1,
        keep_writes=3,
        apply_writes=0,
        cached=(1, 2),
        rereads=True,
        values=lans_values,
        keep=lans_keep,
        terms=(lans_terms_0, lans_terms_1),
        apply=lans_apply,
        answers=(lans_answer_0, lans_answer_1),
        report=lans_report,
        remember=None,
    ),
    "LansAdaptFalse": Program(
        states=("exp_avg", "exp_avg_sq"),
        layer_states=(),
        rounds=(("Squares",),),
        keeps=None,
        keep_writes=0,
        apply_writes=3,
        cached=(),
        rereads=True,
        values=lans_adapt_false_values,
        keep=None,
        terms=(lans_adapt_false_terms,),
        apply=lans_adapt_false_apply,
        answers=(lans_adapt_false_answer,),
        report=lans_adapt_false_report,
        remember=None,
    ),
}
