"""The programs of Adafactor, as device functions.

Printed from rules/adafactor.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import Functions
from layerwise.engines.gpu.kernels.parts import at_least, at_most, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns

# The numbers that are known before a tensor is read.
B2, A2, EPS1, LEAST, CLIPS, THRESHOLD, RHO, EPS2, B1, A1, INSIDE, LAM, LAM_ALPHA = columns(13)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + B2).to(COMPUTE), tl.load(k + A2).to(COMPUTE), tl.load(k + EPS1).to(COMPUTE),
        tl.load(k + LEAST).to(COMPUTE), tl.load(k + B1).to(COMPUTE), tl.load(a + 0).to(COMPUTE),
        tl.load(a + 1).to(COMPUTE), tl.load(a + 2).to(COMPUTE), tl.load(a + 3).to(COMPUTE))

@triton.jit
def terms_0(k, p, g, s):
    b2, a2, eps1, least, b1, answer0, answer1, answer2, answer3 = k
    (exp_avg_sq,) = s
    y0 = at_most(at_least(g, -1125899906842624.0), 1125899906842624.0)
    y1 = y0 + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y1 * y1 + eps1)
    return (p, y1 / at_least(root(exp_avg_sq_), least))

@triton.jit
def apply(k, p, g, s, x):
    b2, a2, eps1, least, b1, answer0, answer1, answer2, answer3 = k
    (exp_avg_sq,) = s
    x1 = x[1]
    y0 = at_most(at_least(g, -1125899906842624.0), 1125899906842624.0)
    y1 = y0 + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y1 * y1 + eps1)
    return (p - answer0 * unless_off(answer0, p) - answer1 * x1, exp_avg_sq_)

@triton.jit
def answer_0(k, S, n, old, a, to):
    mean0 = S[-2] / n
    mean1 = S[-1] / n
    weight_rms = root(mean0)
    y1 = at_least(weight_rms, tl.load(k + EPS2))
    update_rms = root(mean1)
    y3 = at_least(update_rms / tl.load(k + THRESHOLD), 1.0)
    y4 = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / y3)
    trust_ratio = y1 * y4
    tl.store(a + 0, tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * (tl.load(k + RHO) * y1))
    tl.store(a + 1, tl.load(k + RHO) * y1 * y4)
    tl.store(to + 0, update_rms)
    tl.store(to + 1, trust_ratio)
    tl.store(to + 2, weight_rms)

@triton.jit
def terms_0_scale_parameter_false(k, p, g, s):
    b2, a2, eps1, least, b1, answer0, answer1, answer2, answer3 = k
    (exp_avg_sq,) = s
    y0 = at_most(at_least(g, -1125899906842624.0), 1125899906842624.0)
    y1 = y0 + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y1 * y1 + eps1)
    return (y1 / at_least(root(exp_avg_sq_), least),)

@triton.jit
def apply_scale_parameter_false(k, p, g, s, x):
    b2, a2, eps1, least, b1, answer0, answer1, answer2, answer3 = k
    (exp_avg_sq,) = s
    x0 = x[0]
    y0 = at_most(at_least(g, -1125899906842624.0), 1125899906842624.0)
    y1 = y0 + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y1 * y1 + eps1)
    return (p - answer0 * unless_off(answer0, p) - answer1 * x0, exp_avg_sq_)

@triton.jit
def answer_0_scale_parameter_false(k, S, n, old, a, to):
    mean0 = S[-1] / n
    update_rms = root(mean0)
    y1 = at_least(update_rms / tl.load(k + THRESHOLD), 1.0)
    trust_ratio = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / y1)
    tl.store(a + 0, tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * tl.load(k + RHO))
    tl.store(a + 1, tl.load(k + RHO) * trust_ratio)
    tl.store(to + 0, update_rms)
    tl.store(to + 1, trust_ratio)

@triton.jit
def terms_0_with_exp_avg(k, p, g, s):
    b2, a2, eps1, least, b1, answer0, answer1, answer2, answer3 = k
    exp_avg_sq, exp_avg = s
    y0 = at_most(at_least(g, -1125899906842624.0), 1125899906842624.0)
    y1 = y0 + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y1 * y1 + eps1)
    return (p, y1 / at_least(root(exp_avg_sq_), least))

@triton.jit
def apply_with_exp_avg(k, p, g, s, x):
    b2, a2, eps1, least, b1, answer0, answer1, answer2, answer3 = k
    exp_avg_sq, exp_avg = s
    x1 = x[1]
    exp_avg_ = b1 * exp_avg + answer2 * x1
    y1 = at_most(at_least(g, -1125899906842624.0), 1125899906842624.0)
    y2 = y1 + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y2 * y2 + eps1)
    return (p - answer0 * unless_off(answer0, p) - answer1 * exp_avg_, exp_avg_sq_, exp_avg_)

@triton.jit
def answer_0_with_exp_avg(k, S, n, old, a, to):
    mean0 = S[-2] / n
    mean1 = S[-1] / n
    weight_rms = root(mean0)
    y1 = at_least(weight_rms, tl.load(k + EPS2))
    update_rms = root(mean1)
    y3 = at_least(update_rms / tl.load(k + THRESHOLD), 1.0)
    y4 = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / y3)
    y5 = tl.where(tl.load(k + INSIDE) == 1.0, tl.load(k + RHO) * y1, 1.0)
    trust_ratio = y1 * y4
    tl.store(a + 0, tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * (tl.load(k + RHO) * y1))
    tl.store(a + 1, tl.where(tl.load(k + INSIDE) == 1.0, 1.0, tl.load(k + RHO) * y1))
    tl.store(a + 2, tl.load(k + A1) * y4 * y5)
    tl.store(to + 0, update_rms)
    tl.store(to + 1, trust_ratio)
    tl.store(to + 2, weight_rms)

@triton.jit
def terms_0_with_exp_avg_scale_parameter_false(k, p, g, s):
    b2, a2, eps1, least, b1, answer0, answer1, answer2, answer3 = k
    exp_avg_sq, exp_avg = s
    y0 = at_most(at_least(g, -1125899906842624.0), 1125899906842624.0)
    y1 = y0 + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y1 * y1 + eps1)
    return (y1 / at_least(root(exp_avg_sq_), least),)

@triton.jit
def apply_with_exp_avg_scale_parameter_false(k, p, g, s, x):
    b2, a2, eps1, least, b1, answer0, answer1, answer2, answer3 = k
    exp_avg_sq, exp_avg = s
    x0 = x[0]
    exp_avg_ = b1 * exp_avg + answer2 * x0
    y1 = at_most(at_least(g, -1125899906842624.0), 1125899906842624.0)
    y2 = y1 + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y2 * y2 + eps1)
    return (p - answer0 * unless_off(answer0, p) - answer1 * exp_avg_, exp_avg_sq_, exp_avg_)

@triton.jit
def answer_0_with_exp_avg_scale_parameter_false(k, S, n, old, a, to):
    mean0 = S[-1] / n
    update_rms = root(mean0)
    y1 = at_least(update_rms / tl.load(k + THRESHOLD), 1.0)
    trust_ratio = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / y1)
    y3 = tl.where(tl.load(k + INSIDE) == 1.0, tl.load(k + RHO), 1.0)
    tl.store(a + 0, tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * tl.load(k + RHO))
    tl.store(a + 1, tl.where(tl.load(k + INSIDE) == 1.0, 1.0, tl.load(k + RHO)))
    tl.store(a + 2, tl.load(k + A1) * trust_ratio * y3)
    tl.store(to + 0, update_rms)
    tl.store(to + 1, trust_ratio)

@triton.jit
def terms_1_with_exp_avg_caution_true(k, p, g, s):
    b2, a2, eps1, least, b1, answer0, answer1, answer2, answer3 = k
    exp_avg_sq, exp_avg = s
    y0 = at_most(at_least(g, -1125899906842624.0), 1125899906842624.0)
    y1 = y0 + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y1 * y1 + eps1)
    y3 = answer0 * (y1 / at_least(root(exp_avg_sq_), least))
    exp_avg_ = b1 * exp_avg + y3
    y5 = ((exp_avg_ > 0.0) & (g > 0.0)) | ((exp_avg_ < 0.0) & (g < 0.0))
    return (tl.where(y5, 1.0, 0.0 * exp_avg_),)

@triton.jit
def apply_with_exp_avg_caution_true(k, p, g, s, x):
    b2, a2, eps1, least, b1, answer0, answer1, answer2, answer3 = k
    exp_avg_sq, exp_avg = s
    x0 = x[0]
    y0 = at_most(at_least(g, -1125899906842624.0), 1125899906842624.0)
    y1 = y0 + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y1 * y1 + eps1)
    y3 = answer0 * (y1 / at_least(root(exp_avg_sq_), least))
    exp_avg_ = b1 * exp_avg + y3
    return (p - answer1 * unless_off(answer1, p) - answer2 * (exp_avg_ * x0 / answer3), exp_avg_sq_, exp_avg_)

@triton.jit
def answer_0_with_exp_avg_caution_true(k, S, n, old, a, to):
    mean0 = S[-2] / n
    mean1 = S[-1] / n
    update_rms = root(mean1)
    y1 = at_least(update_rms / tl.load(k + THRESHOLD), 1.0)
    y2 = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / y1)
    weight_rms = root(mean0)
    y4 = at_least(weight_rms, tl.load(k + EPS2))
    y5 = tl.where(tl.load(k + INSIDE) == 1.0, tl.load(k + RHO) * y4, 1.0)
    trust_ratio = y4 * y2
    tl.store(a + 0, tl.load(k + A1) * y2 * y5)
    tl.store(a + 1, tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * (tl.load(k + RHO) * y4))
    tl.store(a + 2, tl.where(tl.load(k + INSIDE) == 1.0, 1.0, tl.load(k + RHO) * y4))
    tl.store(to + 0, update_rms)
    tl.store(to + 1, trust_ratio)
    tl.store(to + 3, weight_rms)

@triton.jit
def answer_1_with_exp_avg_caution_true(k, S, n, old, a, to):
    mean2 = S[-1] / n
    tl.store(a + 3, at_least(mean2, 0.001))
    tl.store(to + 2, mean2)

@triton.jit
def answer_0_with_exp_avg_caution_true_scale_parameter_false(k, S, n, old, a, to):
    mean0 = S[-1] / n
    update_rms = root(mean0)
    y1 = at_least(update_rms / tl.load(k + THRESHOLD), 1.0)
    trust_ratio = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / y1)
    y3 = tl.where(tl.load(k + INSIDE) == 1.0, tl.load(k + RHO), 1.0)
    tl.store(a + 0, tl.load(k + A1) * trust_ratio * y3)
    tl.store(a + 1, tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * tl.load(k + RHO))
    tl.store(a + 2, tl.where(tl.load(k + INSIDE) == 1.0, 1.0, tl.load(k + RHO)))
    tl.store(to + 0, update_rms)
    tl.store(to + 1, trust_ratio)

@triton.jit
def answer_1_with_exp_avg_caution_true_scale_parameter_false(k, S, n, old, a, to):
    mean1 = S[-1] / n
    tl.store(a + 3, at_least(mean1, 0.001))
    tl.store(to + 2, mean1)

@triton.jit
def averaged(k, x, mean):
    return tl.load(k + B2) * x + tl.load(k + A2) * (mean + tl.load(k + EPS1))

@triton.jit
def averaged_mean(k, R_mean, mean):
    y0 = tl.load(k + B2) * R_mean + tl.load(k + A2) * (mean + tl.load(k + EPS1))
    return at_least(y0, tl.load(k + LEAST))

@triton.jit
def bounded(g):
    y0 = at_most(at_least(g, -1125899906842624.0), 1125899906842624.0)
    return y0 + (g - g)

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
        answer_1_with_exp_avg_caution_true_scale_parameter_false)),
}
