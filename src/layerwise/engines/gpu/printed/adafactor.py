"""The programs of Adafactor, as device functions.

Printed from rules/adafactor.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import PrintedFunctions
from layerwise.engines.gpu.kernels.common import at_least, at_most, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns

# The numbers that are known before a tensor is read.
B2, A2, EPS1, LEAST, MOST, CLIPS, THRESHOLD, RHO, EPS2, B1, A1, INSIDE, LAM, LAM_ALPHA = columns(14)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + B2).to(COMPUTE), tl.load(k + A2).to(COMPUTE), tl.load(k + EPS1).to(COMPUTE),
        tl.load(k + LEAST).to(COMPUTE), tl.load(k + MOST).to(COMPUTE), tl.load(k + B1).to(COMPUTE),
        (-tl.load(k + MOST)).to(COMPUTE), tl.load(a + 0).to(COMPUTE), tl.load(a + 1).to(COMPUTE),
        tl.load(a + 2).to(COMPUTE), tl.load(a + 3).to(COMPUTE), tl.load(a + 4).to(COMPUTE))

@triton.jit
def terms_0(k, p, g, s):
    b2, a2, eps1, least, most, b1, early0, answer0, answer1, answer2, answer3, answer4 = k
    (exp_avg_sq,) = s
    y0 = at_most(at_least(g, early0), most) + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0 + eps1)
    return (y0 / at_least(root(exp_avg_sq_), least), p)

@triton.jit
def apply(k, p, g, s, x):
    b2, a2, eps1, least, most, b1, early0, answer0, answer1, answer2, answer3, answer4 = k
    (exp_avg_sq,) = s
    x0 = x[0]
    y0 = at_most(at_least(g, early0), most) + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0 + eps1)
    return (p - answer0 * unless_off(answer0, p) - answer1 * x0, exp_avg_sq_)

@triton.jit
def answer_0(k, S, n, old, a, to):
    mean0 = S[-2] / n
    mean1 = S[-1] / n
    weight_rms = root(mean1)
    y1 = at_least(weight_rms, tl.load(k + EPS2))
    update_rms = root(mean0)
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
    b2, a2, eps1, least, most, b1, early0, answer0, answer1, answer2, answer3, answer4 = k
    (exp_avg_sq,) = s
    y0 = at_most(at_least(g, early0), most) + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0 + eps1)
    return (y0 / at_least(root(exp_avg_sq_), least),)

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
    b2, a2, eps1, least, most, b1, early0, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg_sq, exp_avg = s
    y0 = at_most(at_least(g, early0), most) + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0 + eps1)
    return (y0 / at_least(root(exp_avg_sq_), least), p)

@triton.jit
def apply_with_exp_avg(k, p, g, s, x):
    b2, a2, eps1, least, most, b1, early0, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg_sq, exp_avg = s
    x0 = x[0]
    exp_avg_ = b1 * exp_avg + answer2 * x0
    y1 = at_most(at_least(g, early0), most) + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y1 * y1 + eps1)
    return (p - answer0 * unless_off(answer0, p) - answer1 * exp_avg_, exp_avg_sq_, exp_avg_)

@triton.jit
def answer_0_with_exp_avg(k, S, n, old, a, to):
    mean0 = S[-2] / n
    mean1 = S[-1] / n
    weight_rms = root(mean1)
    y1 = at_least(weight_rms, tl.load(k + EPS2))
    update_rms = root(mean0)
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
    b2, a2, eps1, least, most, b1, early0, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg_sq, exp_avg = s
    y0 = at_most(at_least(g, early0), most) + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0 + eps1)
    return (y0 / at_least(root(exp_avg_sq_), least),)

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
    b2, a2, eps1, least, most, b1, early0, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg_sq, exp_avg = s
    y0 = at_most(at_least(g, early0), most) + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0 + eps1)
    y2 = answer0 * (y0 / at_least(root(exp_avg_sq_), least))
    exp_avg_ = b1 * exp_avg + y2
    y4 = ((exp_avg_ > 0.0) & (g > 0.0)) | ((exp_avg_ < 0.0) & (g < 0.0))
    return (tl.where(y4, 1.0, 0.0 * exp_avg_),)

@triton.jit
def apply_with_exp_avg_caution_true(k, p, g, s, x):
    b2, a2, eps1, least, most, b1, early0, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg_sq, exp_avg = s
    x0 = x[0]
    y0 = at_most(at_least(g, early0), most) + (g - g)
    exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0 + eps1)
    y2 = answer0 * (y0 / at_least(root(exp_avg_sq_), least))
    exp_avg_ = b1 * exp_avg + y2
    return (p - answer1 * unless_off(answer1, p) - answer2 * (exp_avg_ * x0 / answer3), exp_avg_sq_, exp_avg_)

@triton.jit
def answer_0_with_exp_avg_caution_true(k, S, n, old, a, to):
    mean0 = S[-2] / n
    mean1 = S[-1] / n
    update_rms = root(mean0)
    y1 = at_least(update_rms / tl.load(k + THRESHOLD), 1.0)
    y2 = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / y1)
    weight_rms = root(mean1)
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
def terms_0_by_lines(k, p, g, s):
    b2, a2, eps1, least, most, b1, early0, answer0, answer1, answer2, answer3, answer4 = k
    y0 = at_most(at_least(g, early0), most) + (g - g)
    return (y0 * y0, y0 * y0, p)

@triton.jit
def terms_1_by_lines(k, p, g, s):
    b2, a2, eps1, least, most, b1, early0, answer0, answer1, answer2, answer3, answer4 = k
    row, column = s
    return ((at_most(at_least(g, early0), most) + (g - g)) * at_most(row * column, answer0),)

@triton.jit
def apply_by_lines(k, p, g, s, x):
    b2, a2, eps1, least, most, b1, early0, answer0, answer1, answer2, answer3, answer4 = k
    row, column = s
    y0 = (at_most(at_least(g, early0), most) + (g - g)) * at_most(row * column, answer0)
    return (p - answer1 * unless_off(answer1, p) - answer2 * y0,)

@triton.jit
def answer_0_by_lines(k, S, n, old, a, to):
    mean4 = S[-1] / n
    y0 = tl.where(tl.load(k + LEAST) == 0.0, 1.0, tl.load(k + LEAST))
    weight_rms = root(mean4)
    y2 = tl.load(k + RHO) * at_least(weight_rms, tl.load(k + EPS2))
    tl.store(a + 0, tl.where(tl.load(k + LEAST) == 0.0, float("inf"), 1.0 / y0))
    tl.store(a + 1, tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * y2)
    tl.store(to + 2, weight_rms)

@triton.jit
def answer_1_by_lines(k, S, n, old, a, to):
    mean4 = S[-2] / n
    mean5 = S[-1] / n
    weight_rms = root(mean4)
    y1 = at_least(weight_rms, tl.load(k + EPS2))
    update_rms = root(mean5)
    y3 = at_least(update_rms / tl.load(k + THRESHOLD), 1.0)
    y4 = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / y3)
    trust_ratio = y1 * y4
    tl.store(a + 2, tl.load(k + RHO) * y1 * y4)
    tl.store(to + 0, update_rms)
    tl.store(to + 1, trust_ratio)

@triton.jit
def row_by_lines(k, old, mean, matrix_mean, mean_of_rows):
    exp_avg_sq_row = tl.load(k + B2) * old + tl.load(k + A2) * (mean + tl.load(k + EPS1))
    y1 = tl.load(k + A2) * (matrix_mean + tl.load(k + EPS1))
    y2 = at_least(tl.load(k + B2) * mean_of_rows + y1, tl.load(k + LEAST))
    return (exp_avg_sq_row, 1.0 / root(exp_avg_sq_row / y2))

@triton.jit
def column_by_lines(k, old, mean, matrix_mean, mean_of_rows):
    exp_avg_sq_col = tl.load(k + B2) * old + tl.load(k + A2) * (mean + tl.load(k + EPS1))
    return (exp_avg_sq_col, 1.0 / root(exp_avg_sq_col))

@triton.jit
def terms_0_by_lines_scale_parameter_false(k, p, g, s):
    b2, a2, eps1, least, most, b1, early0, answer0, answer1, answer2, answer3, answer4 = k
    y0 = at_most(at_least(g, early0), most) + (g - g)
    return (y0 * y0, y0 * y0)

@triton.jit
def answer_0_by_lines_scale_parameter_false(k, S, n, old, a, to):
    y0 = tl.where(tl.load(k + LEAST) == 0.0, 1.0, tl.load(k + LEAST))
    tl.store(a + 0, tl.where(tl.load(k + LEAST) == 0.0, float("inf"), 1.0 / y0))
    tl.store(a + 1, tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * tl.load(k + RHO))

@triton.jit
def answer_1_by_lines_scale_parameter_false(k, S, n, old, a, to):
    mean4 = S[-1] / n
    update_rms = root(mean4)
    y1 = at_least(update_rms / tl.load(k + THRESHOLD), 1.0)
    trust_ratio = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / y1)
    tl.store(a + 2, tl.load(k + RHO) * trust_ratio)
    tl.store(to + 0, update_rms)
    tl.store(to + 1, trust_ratio)

@triton.jit
def terms_1_by_lines_with_exp_avg(k, p, g, s):
    b2, a2, eps1, least, most, b1, early0, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg, row, column = s
    return ((at_most(at_least(g, early0), most) + (g - g)) * at_most(row * column, answer0),)

@triton.jit
def apply_by_lines_with_exp_avg(k, p, g, s, x):
    b2, a2, eps1, least, most, b1, early0, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg, row, column = s
    y0 = (at_most(at_least(g, early0), most) + (g - g)) * at_most(row * column, answer0)
    exp_avg_ = b1 * exp_avg + answer3 * y0
    return (p - answer1 * unless_off(answer1, p) - answer2 * exp_avg_, exp_avg_)

@triton.jit
def answer_0_by_lines_with_exp_avg(k, S, n, old, a, to):
    mean4 = S[-1] / n
    y0 = tl.where(tl.load(k + LEAST) == 0.0, 1.0, tl.load(k + LEAST))
    weight_rms = root(mean4)
    y2 = tl.load(k + RHO) * at_least(weight_rms, tl.load(k + EPS2))
    tl.store(a + 0, tl.where(tl.load(k + LEAST) == 0.0, float("inf"), 1.0 / y0))
    tl.store(a + 1, tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * y2)
    tl.store(a + 2, tl.where(tl.load(k + INSIDE) == 1.0, 1.0, y2))
    tl.store(to + 2, weight_rms)

@triton.jit
def answer_1_by_lines_with_exp_avg(k, S, n, old, a, to):
    mean4 = S[-2] / n
    mean5 = S[-1] / n
    update_rms = root(mean5)
    y1 = at_least(update_rms / tl.load(k + THRESHOLD), 1.0)
    y2 = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / y1)
    weight_rms = root(mean4)
    y4 = at_least(weight_rms, tl.load(k + EPS2))
    y5 = tl.where(tl.load(k + INSIDE) == 1.0, tl.load(k + RHO) * y4, 1.0)
    trust_ratio = y4 * y2
    tl.store(a + 3, tl.load(k + A1) * y2 * y5)
    tl.store(to + 0, update_rms)
    tl.store(to + 1, trust_ratio)

@triton.jit
def answer_0_by_lines_with_exp_avg_scale_parameter_false(k, S, n, old, a, to):
    y0 = tl.where(tl.load(k + LEAST) == 0.0, 1.0, tl.load(k + LEAST))
    tl.store(a + 0, tl.where(tl.load(k + LEAST) == 0.0, float("inf"), 1.0 / y0))
    tl.store(a + 1, tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * tl.load(k + RHO))
    tl.store(a + 2, tl.where(tl.load(k + INSIDE) == 1.0, 1.0, tl.load(k + RHO)))

@triton.jit
def answer_1_by_lines_with_exp_avg_scale_parameter_false(k, S, n, old, a, to):
    mean4 = S[-1] / n
    update_rms = root(mean4)
    y1 = at_least(update_rms / tl.load(k + THRESHOLD), 1.0)
    trust_ratio = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / y1)
    y3 = tl.where(tl.load(k + INSIDE) == 1.0, tl.load(k + RHO), 1.0)
    tl.store(a + 3, tl.load(k + A1) * trust_ratio * y3)
    tl.store(to + 0, update_rms)
    tl.store(to + 1, trust_ratio)

@triton.jit
def terms_2_by_lines_with_exp_avg_caution_true(k, p, g, s):
    b2, a2, eps1, least, most, b1, early0, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg, row, column = s
    y0 = (at_most(at_least(g, early0), most) + (g - g)) * at_most(row * column, answer0)
    exp_avg_ = b1 * exp_avg + answer1 * y0
    y2 = ((exp_avg_ > 0.0) & (g > 0.0)) | ((exp_avg_ < 0.0) & (g < 0.0))
    return (tl.where(y2, 1.0, 0.0 * exp_avg_),)

@triton.jit
def apply_by_lines_with_exp_avg_caution_true(k, p, g, s, x):
    b2, a2, eps1, least, most, b1, early0, answer0, answer1, answer2, answer3, answer4 = k
    exp_avg, row, column = s
    y0 = (at_most(at_least(g, early0), most) + (g - g)) * at_most(row * column, answer0)
    exp_avg_ = b1 * exp_avg + answer1 * y0
    y2 = ((exp_avg_ > 0.0) & (g > 0.0)) | ((exp_avg_ < 0.0) & (g < 0.0))
    y3 = exp_avg_ * tl.where(y2, 1.0, 0.0 * exp_avg_) / answer4
    return (p - answer2 * unless_off(answer2, p) - answer3 * y3, exp_avg_)

@triton.jit
def answer_0_by_lines_with_exp_avg_caution_true(k, S, n, old, a, to):
    mean4 = S[-1] / n
    y0 = tl.where(tl.load(k + LEAST) == 0.0, 1.0, tl.load(k + LEAST))
    weight_rms = root(mean4)
    y2 = tl.load(k + RHO) * at_least(weight_rms, tl.load(k + EPS2))
    tl.store(a + 0, tl.where(tl.load(k + LEAST) == 0.0, float("inf"), 1.0 / y0))
    tl.store(a + 2, tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * y2)
    tl.store(a + 3, tl.where(tl.load(k + INSIDE) == 1.0, 1.0, y2))
    tl.store(to + 3, weight_rms)

@triton.jit
def answer_1_by_lines_with_exp_avg_caution_true(k, S, n, old, a, to):
    mean4 = S[-2] / n
    mean5 = S[-1] / n
    update_rms = root(mean5)
    y1 = at_least(update_rms / tl.load(k + THRESHOLD), 1.0)
    y2 = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / y1)
    weight_rms = root(mean4)
    y4 = at_least(weight_rms, tl.load(k + EPS2))
    y5 = tl.where(tl.load(k + INSIDE) == 1.0, tl.load(k + RHO) * y4, 1.0)
    trust_ratio = y4 * y2
    tl.store(a + 1, tl.load(k + A1) * y2 * y5)
    tl.store(to + 0, update_rms)
    tl.store(to + 1, trust_ratio)

@triton.jit
def answer_2_by_lines_with_exp_avg_caution_true(k, S, n, old, a, to):
    mean6 = S[-1] / n
    tl.store(a + 4, at_least(mean6, 0.001))
    tl.store(to + 2, mean6)

@triton.jit
def answer_0_by_lines_with_exp_avg_caution_true_scale_parameter_false(k, S, n, old, a, to):
    y0 = tl.where(tl.load(k + LEAST) == 0.0, 1.0, tl.load(k + LEAST))
    tl.store(a + 0, tl.where(tl.load(k + LEAST) == 0.0, float("inf"), 1.0 / y0))
    tl.store(a + 2, tl.load(k + LAM) + tl.load(k + LAM_ALPHA) * tl.load(k + RHO))
    tl.store(a + 3, tl.where(tl.load(k + INSIDE) == 1.0, 1.0, tl.load(k + RHO)))

@triton.jit
def answer_1_by_lines_with_exp_avg_caution_true_scale_parameter_false(k, S, n, old, a, to):
    mean4 = S[-1] / n
    update_rms = root(mean4)
    y1 = at_least(update_rms / tl.load(k + THRESHOLD), 1.0)
    trust_ratio = tl.where(tl.load(k + CLIPS) == 0.0, 1.0, 1.0 / y1)
    y3 = tl.where(tl.load(k + INSIDE) == 1.0, tl.load(k + RHO), 1.0)
    tl.store(a + 1, tl.load(k + A1) * trust_ratio * y3)
    tl.store(to + 0, update_rms)
    tl.store(to + 1, trust_ratio)

@triton.jit
def answer_2_by_lines_with_exp_avg_caution_true_scale_parameter_false(k, S, n, old, a, to):
    mean5 = S[-1] / n
    tl.store(a + 4, at_least(mean5, 0.001))
    tl.store(to + 2, mean5)

PROGRAMS = {
    "Adafactor": PrintedFunctions(values, terms=(terms_0,), apply=apply, answers=(answer_0,)),
    "AdafactorScaleParameterFalse": PrintedFunctions(values, terms=(terms_0_scale_parameter_false,), apply=apply,
        answers=(answer_0_scale_parameter_false,)),
    "AdafactorWithExpAvg": PrintedFunctions(values, terms=(terms_0_with_exp_avg,), apply=apply_with_exp_avg,
        answers=(answer_0_with_exp_avg,)),
    "AdafactorWithExpAvgScaleParameterFalse": PrintedFunctions(values,
        terms=(terms_0_with_exp_avg_scale_parameter_false,), apply=apply_with_exp_avg,
        answers=(answer_0_with_exp_avg_scale_parameter_false,)),
    "AdafactorWithExpAvgCautionTrue": PrintedFunctions(values, terms=(terms_0_with_exp_avg,
        terms_1_with_exp_avg_caution_true), apply=apply_with_exp_avg_caution_true,
        answers=(answer_0_with_exp_avg_caution_true, answer_1_with_exp_avg_caution_true)),
    "AdafactorWithExpAvgCautionTrueScaleParameterFalse": PrintedFunctions(values,
        terms=(terms_0_with_exp_avg_scale_parameter_false, terms_1_with_exp_avg_caution_true),
        apply=apply_with_exp_avg_caution_true, answers=(answer_0_with_exp_avg_caution_true_scale_parameter_false,
        answer_1_with_exp_avg_caution_true_scale_parameter_false)),
    "AdafactorByLines": PrintedFunctions(values, terms=(terms_0_by_lines, terms_1_by_lines), apply=apply_by_lines,
        answers=(answer_0_by_lines, answer_1_by_lines), row=row_by_lines, column=column_by_lines),
    "AdafactorByLinesScaleParameterFalse": PrintedFunctions(values, terms=(terms_0_by_lines_scale_parameter_false,
        terms_1_by_lines), apply=apply_by_lines, answers=(answer_0_by_lines_scale_parameter_false,
        answer_1_by_lines_scale_parameter_false), row=row_by_lines, column=column_by_lines),
    "AdafactorByLinesWithExpAvg": PrintedFunctions(values, terms=(terms_0_by_lines, terms_1_by_lines_with_exp_avg),
        apply=apply_by_lines_with_exp_avg, answers=(answer_0_by_lines_with_exp_avg, answer_1_by_lines_with_exp_avg),
        row=row_by_lines, column=column_by_lines),
    "AdafactorByLinesWithExpAvgScaleParameterFalse": PrintedFunctions(values,
        terms=(terms_0_by_lines_scale_parameter_false, terms_1_by_lines_with_exp_avg),
        apply=apply_by_lines_with_exp_avg, answers=(answer_0_by_lines_with_exp_avg_scale_parameter_false,
        answer_1_by_lines_with_exp_avg_scale_parameter_false), row=row_by_lines, column=column_by_lines),
    "AdafactorByLinesWithExpAvgCautionTrue": PrintedFunctions(values, terms=(terms_0_by_lines,
        terms_1_by_lines_with_exp_avg, terms_2_by_lines_with_exp_avg_caution_true),
        apply=apply_by_lines_with_exp_avg_caution_true, answers=(answer_0_by_lines_with_exp_avg_caution_true,
        answer_1_by_lines_with_exp_avg_caution_true, answer_2_by_lines_with_exp_avg_caution_true), row=row_by_lines,
        column=column_by_lines),
    "AdafactorByLinesWithExpAvgCautionTrueScaleParameterFalse": PrintedFunctions(values,
        terms=(terms_0_by_lines_scale_parameter_false, terms_1_by_lines_with_exp_avg,
        terms_2_by_lines_with_exp_avg_caution_true), apply=apply_by_lines_with_exp_avg_caution_true,
        answers=(answer_0_by_lines_with_exp_avg_caution_true_scale_parameter_false,
        answer_1_by_lines_with_exp_avg_caution_true_scale_parameter_false,
        answer_2_by_lines_with_exp_avg_caution_true_scale_parameter_false), row=row_by_lines, column=column_by_lines),
}
