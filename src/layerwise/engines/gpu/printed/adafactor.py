"""The programs of Adafactor, as device functions.

Printed from rules/adafactor.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import at_least, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns
from layerwise.engines.gpu.program import Functions

# The numbers that are known before a tensor is read.
B2, A2, EPS1, LEAST, CLIPS, THRESHOLD, RHO, EPS2, B1, A1, INSIDE, LAM, LAM_ALPHA = columns(13)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + B2).to(COMPUTE), tl.load(k + A2).to(COMPUTE), tl.load(k + EPS1).to(COMPUTE),
        tl.load(k + LEAST).to(COMPUTE), tl.load(k + B1).to(COMPUTE), tl.load(a + 0).to(COMPUTE),
        tl.load(a + 1).to(COMPUTE), tl.load(a + 2).to(COMPUTE), tl.load(a + 3).to(COMPUTE))

@triton.jit
def terms_0(k, p, g, s):
    b2, a2, eps1, least, b1, lam, size, step, size_ = k
    (V,) = s
    V_ = b2 * V + a2 * (g * g + eps1)
    u = g / at_least(root(V_), least)
    return (p, u)

@triton.jit
def apply(k, p, g, s, x):
    b2, a2, eps1, least, b1, lam, size, step, size_ = k
    (V,) = s
    u = x[1]
    V_ = b2 * V + a2 * (g * g + eps1)
    return (p - lam * unless_off(lam, p) - size * u, V_)

@triton.jit
def answer_0(k, S, n, old, a, to):
    mean = S[-2] / n
    uu = S[-1] / n
    rms_p = root(mean)
    scale = at_least(rms_p, tl.load(k + EPS2))
    alpha = tl.load(k + RHO) * scale
    lam = tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * alpha
    rms = root(uu)
    clip = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0))
    size = alpha * clip
    tl.store(a + 0, lam)
    tl.store(a + 1, size)
    tl.store(to + 0, rms)
    tl.store(to + 1, scale * clip)
    tl.store(to + 2, rms_p)

@triton.jit
def terms_0_scale_parameter_false(k, p, g, s):
    b2, a2, eps1, least, b1, lam, size, step, size_ = k
    (V,) = s
    V_ = b2 * V + a2 * (g * g + eps1)
    u = g / at_least(root(V_), least)
    return (u,)

@triton.jit
def apply_scale_parameter_false(k, p, g, s, x):
    b2, a2, eps1, least, b1, lam, size, step, size_ = k
    (V,) = s
    u = x[0]
    V_ = b2 * V + a2 * (g * g + eps1)
    return (p - lam * unless_off(lam, p) - size * u, V_)

@triton.jit
def answer_0_scale_parameter_false(k, S, n, old, a, to):
    uu = S[-1] / n
    lam = tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * tl.load(k + RHO)
    rms = root(uu)
    clip = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0))
    size = tl.load(k + RHO) * clip
    tl.store(a + 0, lam)
    tl.store(a + 1, size)
    tl.store(to + 0, rms)
    tl.store(to + 1, clip)

@triton.jit
def terms_0_with_exp_avg(k, p, g, s):
    b2, a2, eps1, least, b1, lam, size, step, size_ = k
    V, e = s
    V_ = b2 * V + a2 * (g * g + eps1)
    u = g / at_least(root(V_), least)
    return (p, u)

@triton.jit
def apply_with_exp_avg(k, p, g, s, x):
    b2, a2, eps1, least, b1, lam, size, step, size_ = k
    V, e = s
    u = x[1]
    e_ = b1 * e + step * u
    V_ = b2 * V + a2 * (g * g + eps1)
    return (p - lam * unless_off(lam, p) - size * e_, V_, e_)

@triton.jit
def answer_0_with_exp_avg(k, S, n, old, a, to):
    mean = S[-2] / n
    uu = S[-1] / n
    rms_p = root(mean)
    scale = at_least(rms_p, tl.load(k + EPS2))
    alpha = tl.load(k + RHO) * scale
    lam = tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * alpha
    inside = tl.load(k + INSIDE) == 1.0
    size = tl.where(inside, 1.0, alpha)
    rms = root(uu)
    clip = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0))
    tl.store(a + 0, lam)
    tl.store(a + 1, size)
    tl.store(a + 2, tl.load(k + A1) * clip * tl.where(inside, alpha, 1.0))
    tl.store(to + 0, rms)
    tl.store(to + 1, scale * clip)
    tl.store(to + 2, rms_p)

@triton.jit
def terms_0_with_exp_avg_scale_parameter_false(k, p, g, s):
    b2, a2, eps1, least, b1, lam, size, step, size_ = k
    V, e = s
    V_ = b2 * V + a2 * (g * g + eps1)
    u = g / at_least(root(V_), least)
    return (u,)

@triton.jit
def apply_with_exp_avg_scale_parameter_false(k, p, g, s, x):
    b2, a2, eps1, least, b1, lam, size, step, size_ = k
    V, e = s
    u = x[0]
    e_ = b1 * e + step * u
    V_ = b2 * V + a2 * (g * g + eps1)
    return (p - lam * unless_off(lam, p) - size * e_, V_, e_)

@triton.jit
def answer_0_with_exp_avg_scale_parameter_false(k, S, n, old, a, to):
    uu = S[-1] / n
    lam = tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * tl.load(k + RHO)
    inside = tl.load(k + INSIDE) == 1.0
    size = tl.where(inside, 1.0, tl.load(k + RHO))
    rms = root(uu)
    clip = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0))
    tl.store(a + 0, lam)
    tl.store(a + 1, size)
    tl.store(a + 2, tl.load(k + A1) * clip * tl.where(inside, tl.load(k + RHO), 1.0))
    tl.store(to + 0, rms)
    tl.store(to + 1, clip)

@triton.jit
def terms_1_with_exp_avg_caution_true(k, p, g, s):
    b2, a2, eps1, least, b1, lam, size, step, size_ = k
    V, e = s
    V_ = b2 * V + a2 * (g * g + eps1)
    u = g / at_least(root(V_), least)
    e_ = b1 * e + step * u
    agrees = tl.where(((e_ > 0.0) & (g > 0.0)) | ((e_ < 0.0) & (g < 0.0)), 1.0, 0.0 * e_)
    return (agrees,)

@triton.jit
def apply_with_exp_avg_caution_true(k, p, g, s, x):
    b2, a2, eps1, least, b1, lam, size, step, size_ = k
    V, e = s
    agrees = x[0]
    V_ = b2 * V + a2 * (g * g + eps1)
    u = g / at_least(root(V_), least)
    e_ = b1 * e + step * u
    moved = e_ * agrees / size_
    return (p - lam * unless_off(lam, p) - size * moved, V_, e_)

@triton.jit
def answer_0_with_exp_avg_caution_true(k, S, n, old, a, to):
    mean = S[-2] / n
    uu = S[-1] / n
    rms = root(uu)
    clip = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0))
    inside = tl.load(k + INSIDE) == 1.0
    rms_p = root(mean)
    scale = at_least(rms_p, tl.load(k + EPS2))
    alpha = tl.load(k + RHO) * scale
    lam = tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * alpha
    size = tl.where(inside, 1.0, alpha)
    tl.store(a + 2, tl.load(k + A1) * clip * tl.where(inside, alpha, 1.0))
    tl.store(a + 0, lam)
    tl.store(a + 1, size)
    tl.store(to + 0, rms)
    tl.store(to + 1, scale * clip)
    tl.store(to + 3, rms_p)

@triton.jit
def answer_1_with_exp_avg_caution_true(k, S, n, old, a, to):
    share = S[-1] / n
    size = at_least(share, 0.001)
    tl.store(a + 3, size)
    tl.store(to + 2, share)

@triton.jit
def answer_0_with_exp_avg_caution_true_scale_parameter_false(k, S, n, old, a, to):
    uu = S[-1] / n
    rms = root(uu)
    clip = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0))
    inside = tl.load(k + INSIDE) == 1.0
    lam = tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * tl.load(k + RHO)
    size = tl.where(inside, 1.0, tl.load(k + RHO))
    tl.store(a + 2, tl.load(k + A1) * clip * tl.where(inside, tl.load(k + RHO), 1.0))
    tl.store(a + 0, lam)
    tl.store(a + 1, size)
    tl.store(to + 0, rms)
    tl.store(to + 1, clip)

@triton.jit
def averaged(k, x, mean):
    return tl.load(k + B2) * x + tl.load(k + A2) * (mean + tl.load(k + EPS1))

@triton.jit
def averaged_mean(k, R_mean, mean):
    return at_least(tl.load(k + B2) * R_mean + tl.load(k + A2) * (mean + tl.load(k + EPS1)), tl.load(k + LEAST))

PROGRAMS = {
    "Adafactor": Functions(values, terms=(terms_0,), apply=apply, answers=(answer_0,)),
    "AdafactorScaleParameterFalse": Functions(values, terms=(terms_0_scale_parameter_false,),
        apply=apply_scale_parameter_false, answers=(answer_0_scale_parameter_false,)),
    "AdafactorWithExpAvg": Functions(values, terms=(terms_0_with_exp_avg,), apply=apply_with_exp_avg,
        answers=(answer_0_with_exp_avg,)),
    "AdafactorWithExpAvgScaleParameterFalse": Functions(values, terms=(terms_0_with_exp_avg_scale_parameter_false,),
        apply=apply_with_exp_avg_scale_parameter_false, answers=(answer_0_with_exp_avg_scale_parameter_false,)),
    "AdafactorWithExpAvgCautionTrue": Functions(values, terms=(terms_0_with_exp_avg, terms_1_with_exp_avg_caution_true),
        apply=apply_with_exp_avg_caution_true, answers=(answer_0_with_exp_avg_caution_true,
        answer_1_with_exp_avg_caution_true)),
    "AdafactorWithExpAvgCautionTrueScaleParameterFalse": Functions(values,
        terms=(terms_0_with_exp_avg_scale_parameter_false, terms_1_with_exp_avg_caution_true),
        apply=apply_with_exp_avg_caution_true, answers=(answer_0_with_exp_avg_caution_true_scale_parameter_false,
        answer_1_with_exp_avg_caution_true)),
}
