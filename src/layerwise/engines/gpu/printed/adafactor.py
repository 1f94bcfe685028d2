"""The programs of Adafactor, as device functions.

Printed from rules/adafactor.py by `make generate`: change that, not this file.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import at_least, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns
from layerwise.engines.gpu.program import Program

# The numbers that are known before a tensor is read.
B2, A2, EPS1, LEAST, CLIPS, THRESHOLD, RHO, EPS2, B1, A1, INSIDE, LAM, LAM_ALPHA = columns(13)


@triton.jit
def adafactor_values(k, a, COMPUTE: tl.constexpr):
    b2 = tl.load(k + B2).to(COMPUTE)
    a2 = tl.load(k + A2).to(COMPUTE)
    eps1 = tl.load(k + EPS1).to(COMPUTE)
    least = tl.load(k + LEAST).to(COMPUTE)
    lam_ = tl.load(a + 0).to(COMPUTE)
    size = tl.load(a + 1).to(COMPUTE)
    return (b2, a2, eps1, least, lam_, size)


@triton.jit
def adafactor_terms(k, p, g, s):
    b2, a2, eps1, least, lam_, size = k
    (V,) = s
    V_ = b2 * V + a2 * (g * g + eps1)
    u = g / at_least(root(V_), least)
    return (p, u)


@triton.jit
def adafactor_apply(k, p, g, s, x):
    b2, a2, eps1, least, lam_, size = k
    (V,) = s
    u = x[1]
    V_ = b2 * V + a2 * (g * g + eps1)
    return (p - lam_ * unless_off(lam_, p) - size * u, V_)


@triton.jit
def adafactor_answer(k, S, n, old, a):
    total_0 = S[0] / n
    uu = S[1] / n
    rms_p = root(total_0)
    scale = at_least(rms_p, tl.load(k + EPS2))
    alpha = tl.load(k + RHO) * scale
    lam = tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * alpha
    rms = root(uu)
    clip = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0))
    size = alpha * clip
    tl.store(a + 0, lam)
    tl.store(a + 1, size)


@triton.jit
def adafactor_report(k, S, n, old, to):
    total_0 = S[0] / n
    uu = S[1] / n
    rms = root(uu)
    rms_p = root(total_0)
    scale = at_least(rms_p, tl.load(k + EPS2))
    clip = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0))
    tl.store(to + 0, rms)
    tl.store(to + 1, scale * clip)
    tl.store(to + 2, rms_p)


@triton.jit
def adafactor_scale_parameter_false_values(k, a, COMPUTE: tl.constexpr):
    b2 = tl.load(k + B2).to(COMPUTE)
    a2 = tl.load(k + A2).to(COMPUTE)
    eps1 = tl.load(k + EPS1).to(COMPUTE)
    least = tl.load(k + LEAST).to(COMPUTE)
    lam_ = (tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * tl.load(k + RHO)).to(COMPUTE)
    size = tl.load(a + 0).to(COMPUTE)
    return (b2, a2, eps1, least, lam_, size)


@triton.jit
def adafactor_scale_parameter_false_terms(k, p, g, s):
    b2, a2, eps1, least, lam_, size = k
    (V,) = s
    V_ = b2 * V + a2 * (g * g + eps1)
    u = g / at_least(root(V_), least)
    return (u,)


@triton.jit
def adafactor_scale_parameter_false_apply(k, p, g, s, x):
    b2, a2, eps1, least, lam_, size = k
    (V,) = s
    u = x[0]
    V_ = b2 * V + a2 * (g * g + eps1)
    return (p - lam_ * unless_off(lam_, p) - size * u, V_)


@triton.jit
def adafactor_scale_parameter_false_answer(k, S, n, old, a):
    uu = S[0] / n
    rms = root(uu)
    clip = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0))
    size = tl.load(k + RHO) * clip
    tl.store(a + 0, size)


@triton.jit
def adafactor_scale_parameter_false_report(k, S, n, old, to):
    uu = S[0] / n
    rms = root(uu)
    clip = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0))
    tl.store(to + 0, rms)
    tl.store(to + 1, clip)


@triton.jit
def adafactor_with_exp_avg_values(k, a, COMPUTE: tl.constexpr):
    b2 = tl.load(k + B2).to(COMPUTE)
    a2 = tl.load(k + A2).to(COMPUTE)
    eps1 = tl.load(k + EPS1).to(COMPUTE)
    least = tl.load(k + LEAST).to(COMPUTE)
    b1 = tl.load(k + B1).to(COMPUTE)
    lam_ = tl.load(a + 0).to(COMPUTE)
    size = tl.load(a + 1).to(COMPUTE)
    step = tl.load(a + 2).to(COMPUTE)
    return (b2, a2, eps1, least, b1, lam_, size, step)


@triton.jit
def adafactor_with_exp_avg_terms(k, p, g, s):
    b2, a2, eps1, least, b1, lam_, size, step = k
    V, e = s
    V_ = b2 * V + a2 * (g * g + eps1)
    u = g / at_least(root(V_), least)
    return (p, u)


@triton.jit
def adafactor_with_exp_avg_apply(k, p, g, s, x):
    b2, a2, eps1, least, b1, lam_, size, step = k
    V, e = s
    u = x[1]
    e_ = b1 * e + step * u
    V_ = b2 * V + a2 * (g * g + eps1)
    return (p - lam_ * unless_off(lam_, p) - size * e_, V_, e_)


@triton.jit
def adafactor_with_exp_avg_answer(k, S, n, old, a):
    total_0 = S[0] / n
    uu = S[1] / n
    rms_p = root(total_0)
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


@triton.jit
def adafactor_with_exp_avg_report(k, S, n, old, to):
    total_0 = S[0] / n
    uu = S[1] / n
    rms = root(uu)
    rms_p = root(total_0)
    scale = at_least(rms_p, tl.load(k + EPS2))
    clip = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0))
    tl.store(to + 0, rms)
    tl.store(to + 1, scale * clip)
    tl.store(to + 2, rms_p)


@triton.jit
def adafactor_with_exp_avg_scale_parameter_false_values(k, a, COMPUTE: tl.constexpr):
    b2 = tl.load(k + B2).to(COMPUTE)
    a2 = tl.load(k + A2).to(COMPUTE)
    eps1 = tl.load(k + EPS1).to(COMPUTE)
    least = tl.load(k + LEAST).to(COMPUTE)
    b1 = tl.load(k + B1).to(COMPUTE)
    lam_ = (tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * tl.load(k + RHO)).to(COMPUTE)
    size = tl.where(tl.load(k + INSIDE) == 1.0, 1.0, tl.load(k + RHO)).to(COMPUTE)
    step = tl.load(a + 0).to(COMPUTE)
    return (b2, a2, eps1, least, b1, lam_, size, step)


@triton.jit
def adafactor_with_exp_avg_scale_parameter_false_terms(k, p, g, s):
    b2, a2, eps1, least, b1, lam_, size, step = k
    V, e = s
    V_ = b2 * V + a2 * (g * g + eps1)
    u = g / at_least(root(V_), least)
    return (u,)


@triton.jit
def adafactor_with_exp_avg_scale_parameter_false_apply(k, p, g, s, x):
    b2, a2, eps1, least, b1, lam_, size, step = k
    V, e = s
    u = x[0]
    e_ = b1 * e + step * u
    V_ = b2 * V + a2 * (g * g + eps1)
    return (p - lam_ * unless_off(lam_, p) - size * e_, V_, e_)


@triton.jit
def adafactor_with_exp_avg_scale_parameter_false_answer(k, S, n, old, a):
    uu = S[0] / n
    rms = root(uu)
    clip = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0))
    inside = tl.load(k + INSIDE) == 1.0
    tl.store(a + 0, tl.load(k + A1) * clip * tl.where(inside, tl.load(k + RHO), 1.0))


@triton.jit
def adafactor_with_exp_avg_scale_parameter_false_report(k, S, n, old, to):
    uu = S[0] / n
    rms = root(uu)
    clip = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0))
    tl.store(to + 0, rms)
    tl.store(to + 1, clip)


@triton.jit
def adafactor_with_exp_avg_caution_true_values(k, a, COMPUTE: tl.constexpr):
    b2 = tl.load(k + B2).to(COMPUTE)
    a2 = tl.load(k + A2).to(COMPUTE)
    eps1 = tl.load(k + EPS1).to(COMPUTE)
    least = tl.load(k + LEAST).to(COMPUTE)
    b1 = tl.load(k + B1).to(COMPUTE)
    step = tl.load(a + 0).to(COMPUTE)
    lam_ = tl.load(a + 1).to(COMPUTE)
    size = tl.load(a + 2).to(COMPUTE)
    size_ = tl.load(a + 3).to(COMPUTE)
    return (b2, a2, eps1, least, b1, step, lam_, size, size_)


@triton.jit
def adafactor_with_exp_avg_caution_true_terms_0(k, p, g, s):
    b2, a2, eps1, least, b1, step, lam_, size, size_ = k
    V, e = s
    V_ = b2 * V + a2 * (g * g + eps1)
    u = g / at_least(root(V_), least)
    return (p, u)


@triton.jit
def adafactor_with_exp_avg_caution_true_terms_1(k, p, g, s):
    b2, a2, eps1, least, b1, step, lam_, size, size_ = k
    V, e = s
    V_ = b2 * V + a2 * (g * g + eps1)
    u = g / at_least(root(V_), least)
    e_ = b1 * e + step * u
    agrees = tl.where(((e_ > 0.0) & (g > 0.0)) | ((e_ < 0.0) & (g < 0.0)), 1.0, 0.0 * e_)
    return (agrees,)


@triton.jit
def adafactor_with_exp_avg_caution_true_apply(k, p, g, s, x):
    b2, a2, eps1, least, b1, step, lam_, size, size_ = k
    V, e = s
    agrees = x[0]
    V_ = b2 * V + a2 * (g * g + eps1)
    u = g / at_least(root(V_), least)
    e_ = b1 * e + step * u
    moved = e_ * agrees / size_
    return (p - lam_ * unless_off(lam_, p) - size * moved, V_, e_)


@triton.jit
def adafactor_with_exp_avg_caution_true_answer_0(k, S, n, old, a):
    total_0 = S[0] / n
    uu = S[1] / n
    rms = root(uu)
    clip = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0))
    inside = tl.load(k + INSIDE) == 1.0
    rms_p = root(total_0)
    scale = at_least(rms_p, tl.load(k + EPS2))
    alpha = tl.load(k + RHO) * scale
    lam = tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * alpha
    size = tl.where(inside, 1.0, alpha)
    tl.store(a + 0, tl.load(k + A1) * clip * tl.where(inside, alpha, 1.0))
    tl.store(a + 1, lam)
    tl.store(a + 2, size)


@triton.jit
def adafactor_with_exp_avg_caution_true_answer_1(k, S, n, old, a):
    share = S[2] / n
    size = at_least(share, 0.001)
    tl.store(a + 3, size)


@triton.jit
def adafactor_with_exp_avg_caution_true_report(k, S, n, old, to):
    total_0 = S[0] / n
    uu = S[1] / n
    share = S[2] / n
    rms = root(uu)
    rms_p = root(total_0)
    scale = at_least(rms_p, tl.load(k + EPS2))
    clip = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0))
    tl.store(to + 0, rms)
    tl.store(to + 1, scale * clip)
    tl.store(to + 2, share)
    tl.store(to + 3, rms_p)


@triton.jit
def adafactor_with_exp_avg_caution_true_scale_parameter_false_values(k, a, COMPUTE: tl.constexpr):
    b2 = tl.load(k + B2).to(COMPUTE)
    a2 = tl.load(k + A2).to(COMPUTE)
    eps1 = tl.load(k + EPS1).to(COMPUTE)
    least = tl.load(k + LEAST).to(COMPUTE)
    b1 = tl.load(k + B1).to(COMPUTE)
    step = tl.load(a + 0).to(COMPUTE)
    lam_ = (tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * tl.load(k + RHO)).to(COMPUTE)
    size = tl.where(tl.load(k + INSIDE) == 1.0, 1.0, tl.load(k + RHO)).to(COMPUTE)
    size_ = tl.load(a + 1).to(COMPUTE)
    return (b2, a2, eps1, least, b1, step, lam_, size, size_)


@triton.jit
def adafactor_with_exp_avg_caution_true_scale_parameter_false_terms_0(k, p, g, s):
    b2, a2, eps1, least, b1, step, lam_, size, size_ = k
    V, e = s
    V_ = b2 * V + a2 * (g * g + eps1)
    u = g / at_least(root(V_), least)
    return (u,)


@triton.jit
def adafactor_with_exp_avg_caution_true_scale_parameter_false_terms_1(k, p, g, s):
    b2, a2, eps1, least, b1, step, lam_, size, size_ = k
    V, e = s
    V_ = b2 * V + a2 * (g * g + eps1)
    u = g / at_least(root(V_), least)
    e_ = b1 * e + step * u
    agrees = tl.where(((e_ > 0.0) & (g > 0.0)) | ((e_ < 0.0) & (g < 0.0)), 1.0, 0.0 * e_)
    return (agrees,)


@triton.jit
def adafactor_with_exp_avg_caution_true_scale_parameter_false_apply(k, p, g, s, x):
    b2, a2, eps1, least, b1, step, lam_, size, size_ = k
    V, e = s
    agrees = x[0]
    V_ = b2 * V + a2 * (g * g + eps1)
    u = g / at_least(root(V_), least)
    e_ = b1 * e + step * u
    moved = e_ * agrees / size_
    return (p - lam_ * unless_off(lam_, p) - size * moved, V_, e_)


@triton.jit
def adafactor_with_exp_avg_caution_true_scale_parameter_false_answer_0(k, S, n, old, a):
    uu = S[0] / n
    rms = root(uu)
    clip = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0))
    inside = tl.load(k + INSIDE) == 1.0
    tl.store(a + 0, tl.load(k + A1) * clip * tl.where(inside, tl.load(k + RHO), 1.0))


@triton.jit
def adafactor_with_exp_avg_caution_true_scale_parameter_false_answer_1(k, S, n, old, a):
    share = S[1] / n
    size = at_least(share, 0.001)
    tl.store(a + 1, size)


@triton.jit
def adafactor_with_exp_avg_caution_true_scale_parameter_false_report(k, S, n, old, to):
    uu = S[0] / n
    share = S[1] / n
    rms = root(uu)
    clip = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0))
    tl.store(to + 0, rms)
    tl.store(to + 1, clip)
    tl.store(to + 2, share)


PROGRAMS = {
    "Adafactor": Program(
        states=("exp_avg_sq",),
        layer_states=(),
        rounds=(("MeanSquare", "MeanSquare"),),
        keeps=None,
        keep_writes=0,
        apply_writes=1,
        cached=(1,),
        rereads=True,
        values=adafactor_values,
        keep=None,
        terms=(adafactor_terms,),
        apply=adafactor_apply,
        answers=(adafactor_answer,),
        report=adafactor_report,
        remember=None,
    ),
    "AdafactorScaleParameterFalse": Program(
        states=("exp_avg_sq",),
        layer_states=(),
        rounds=(("MeanSquare",),),
        keeps=None,
        keep_writes=0,
        apply_writes=1,
        cached=(0,),
        rereads=True,
        values=adafactor_scale_parameter_false_values,
        keep=None,
        terms=(adafactor_scale_parameter_false_terms,),
        apply=adafactor_scale_parameter_false_apply,
        answers=(adafactor_scale_parameter_false_answer,),
        report=adafactor_scale_parameter_false_report,
        remember=None,
    ),
    "AdafactorWithExpAvg": Program(
        states=("exp_avg_sq", "exp_avg"),
        layer_states=(),
        rounds=(("MeanSquare", "MeanSquare"),),
        keeps=None,
        keep_writes=0,
        apply_writes=3,
        cached=(1,),
        rereads=True,
        values=adafactor_with_exp_avg_values,
        keep=None,
        terms=(adafactor_with_exp_avg_terms,),
        apply=adafactor_with_exp_avg_apply,
        answers=(adafactor_with_exp_avg_answer,),
        report=adafactor_with_exp_avg_report,
        remember=None,
    ),
    "AdafactorWithExpAvgScaleParameterFalse": Program(
        states=("exp_avg_sq", "exp_avg"),
        layer_states=(),
        rounds=(("MeanSquare",),),
        keeps=None,
        keep_writes=0,
        apply_writes=3,
        cached=(0,),
        rereads=True,
        values=adafactor_with_exp_avg_scale_parameter_false_values,
        keep=None,
        terms=(adafactor_with_exp_avg_scale_parameter_false_terms,),
        apply=adafactor_with_exp_avg_scale_parameter_false_apply,
        answers=(adafactor_with_exp_avg_scale_parameter_false_answer,),
        report=adafactor_with_exp_avg_scale_parameter_false_report,
        remember=None,
    ),
    "AdafactorWithExpAvgCautionTrue": Program(
        states=("exp_avg_sq", "exp_avg"),
        layer_states=(),
        rounds=(("MeanSquare", "MeanSquare"), ("Mean",)),
        keeps=None,
        keep_writes=0,
        apply_writes=3,
        cached=(0,),
        rereads=True,
        values=adafactor_with_exp_avg_caution_true_values,
        keep=None,
        terms=(adafactor_with_exp_avg_caution_true_terms_0, adafactor_with_exp_avg_caution_true_terms_1),
        apply=adafactor_with_exp_avg_caution_true_apply,
        answers=(adafactor_with_exp_avg_caution_true_answer_0, adafactor_with_exp_avg_caution_true_answer_1),
        report=adafactor_with_exp_avg_caution_true_report,
        remember=None,
    ),
    "AdafactorWithExpAvgCautionTrueScaleParameterFalse": Program(
        states=("exp_avg_sq", "exp_avg"),
        layer_states=(),
        rounds=(("MeanSquare",), ("Mean",)),
        keeps=None,
        keep_writes=0,
        apply_writes=3,
        cached=(0,),
        rereads=True,
        values=adafactor_with_exp_avg_caution_true_scale_parameter_false_values,
        keep=None,
        terms=(
            adafactor_with_exp_avg_caution_true_scale_parameter_false_terms_0,
            adafactor_with_exp_avg_caution_true_scale_parameter_false_terms_1,
        ),
        apply=adafactor_with_exp_avg_caution_true_scale_parameter_false_apply,
        answers=(
            adafactor_with_exp_avg_caution_true_scale_parameter_false_answer_0,
            adafactor_with_exp_avg_caution_true_scale_parameter_false_answer_1,
        ),
        report=adafactor_with_exp_avg_caution_true_scale_parameter_false_report,
        remember=None,
    ),
}
