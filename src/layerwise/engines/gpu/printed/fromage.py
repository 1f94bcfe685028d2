"""The programs of Fromage, as device functions.

Printed from rules/fromage.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import PrintedFunctions
from layerwise.engines.gpu.kernels.common import at_least, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns

# The numbers that are known before a tensor is read.
MU, SHRINK, SIZE, LEAST, BOUND = columns(5)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + MU).to(COMPUTE), tl.load(k + SHRINK).to(COMPUTE), tl.load(a + 0).to(COMPUTE),
        tl.load(a + 1).to(COMPUTE), tl.load(a + 2).to(COMPUTE))

@triton.jit
def terms_0(k, p, g, s):
    return (p, g)

@triton.jit
def apply(k, p, g, s, x):
    mu, shrink, answer0, answer1, answer2 = k
    return (p - shrink * unless_off(shrink, p) - answer0 * (answer1 * g),)

@triton.jit
def answer_0(k, S, n, old, a, to):
    weight_norm = root(S[-2])
    y1 = at_least(weight_norm, tl.load(k + LEAST))
    update_norm = root(S[-1])
    y3 = at_least(update_norm, tl.load(k + LEAST))
    y4 = tl.where(y3 == 0.0, 1.0, y3)
    y5 = tl.where(y1 > 1.8446744073709552e+19, 5.960464477539063e-08, 1.0)
    y6 = tl.where(y4 * y5 < 5.960464477539063e-08, 281474976710656.0, 1.0)
    y7 = tl.where(y4 * y5 > 16777216.0, 3.552713678800501e-15, y6)
    y8 = tl.where(y4 * y5 < 2.117582368135751e-22, 7.922816251426434e+28, y7)
    y9 = tl.where(y4 * y5 > 4.722366482869645e+21, 1.262177448353619e-29, y8)
    y10 = tl.where(y4 * y5 < 7.52316384526264e-37, 4.253529586511731e+37, y9)
    y11 = tl.where(y4 * y5 > 1.329227995784916e+36, 7.52316384526264e-37, y10)
    y12 = tl.where((y1 != 0.0) & (y3 != 0.0), y1 / (y4 * y11), 1.0 / y11)
    trust_ratio = y12 * y11
    tl.store(a + 0, tl.load(k + SIZE) * y12)
    tl.store(a + 1, y11)
    tl.store(to + 0, weight_norm)
    tl.store(to + 1, update_norm)
    tl.store(to + 2, trust_ratio)

@triton.jit
def terms_1_with_norm_p_bound_given(k, p, g, s):
    mu, shrink, answer0, answer1, answer2 = k
    return (p - shrink * unless_off(shrink, p) - answer0 * (answer1 * g),)

@triton.jit
def apply_with_norm_p_bound_given(k, p, g, s, x):
    mu, shrink, answer0, answer1, answer2 = k
    y0 = p - shrink * unless_off(shrink, p) - answer0 * (answer1 * g)
    return (y0 + answer2 * y0,)

@triton.jit
def answer_1_with_norm_p_bound_given(k, S, n, old, a, to):
    y0 = root(S[-1])
    weight_norm = root(S[-3])
    norm = tl.where(old[0] == 0.0, weight_norm, old[0])
    y3 = y0 > tl.load(k + BOUND) * norm
    y4 = (tl.load(k + BOUND) * norm - y0) / tl.where(y3, y0, 1.0)
    tl.store(a + 2, tl.where(y3, y4, 0.0))

@triton.jit
def remember_with_norm_p_bound_given(k, S, n, old):
    weight_norm = root(S[-3])
    norm = tl.where(old[0] == 0.0, weight_norm, old[0])
    return (norm,)

@triton.jit
def keep_with_momentum_buffer(k, p, g, s):
    mu, shrink, answer0, answer1, answer2 = k
    (momentum_buffer,) = s
    momentum_buffer_ = g + mu * momentum_buffer
    return (momentum_buffer_,)

@triton.jit
def terms_0_with_momentum_buffer(k, p, g, s):
    (momentum_buffer,) = s
    return (p, momentum_buffer)

@triton.jit
def apply_with_momentum_buffer(k, p, g, s, x):
    mu, shrink, answer0, answer1, answer2 = k
    (momentum_buffer,) = s
    return (p - shrink * unless_off(shrink, p) - answer0 * (answer1 * momentum_buffer), momentum_buffer)

@triton.jit
def terms_1_with_momentum_buffer_with_norm_p_bound_given(k, p, g, s):
    mu, shrink, answer0, answer1, answer2 = k
    (momentum_buffer,) = s
    return (p - shrink * unless_off(shrink, p) - answer0 * (answer1 * momentum_buffer),)

@triton.jit
def apply_with_momentum_buffer_with_norm_p_bound_given(k, p, g, s, x):
    mu, shrink, answer0, answer1, answer2 = k
    (momentum_buffer,) = s
    y0 = p - shrink * unless_off(shrink, p) - answer0 * (answer1 * momentum_buffer)
    return (y0 + answer2 * y0, momentum_buffer)

PROGRAMS = {
    "Fromage": PrintedFunctions(values, terms=(terms_0,), apply=apply, answers=(answer_0,)),
    "FromageWithNormPBoundGiven": PrintedFunctions(values, terms=(terms_0, terms_1_with_norm_p_bound_given),
        apply=apply_with_norm_p_bound_given, answers=(answer_0, answer_1_with_norm_p_bound_given),
        remember=remember_with_norm_p_bound_given),
    "FromageWithMomentumBuffer": PrintedFunctions(values, keep=keep_with_momentum_buffer,
        terms=(terms_0_with_momentum_buffer,), apply=apply_with_momentum_buffer, answers=(answer_0,)),
    "FromageWithMomentumBufferWithNormPBoundGiven": PrintedFunctions(values, keep=keep_with_momentum_buffer,
        terms=(terms_0_with_momentum_buffer, terms_1_with_momentum_buffer_with_norm_p_bound_given),
        apply=apply_with_momentum_buffer_with_norm_p_bound_given, answers=(answer_0, answer_1_with_norm_p_bound_given),
        remember=remember_with_norm_p_bound_given),
}
