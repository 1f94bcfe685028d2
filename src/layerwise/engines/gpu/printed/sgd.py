"""The programs of SGD, as device functions.

Printed from rules/sgd.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import PrintedFunctions
from layerwise.engines.gpu.kernels.common import unless_off
from layerwise.engines.gpu.kernels.tables import columns

# The numbers that are known before a tensor is read.
L2, SHRINK, DAMPED, MU, LR = columns(5)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + L2).to(COMPUTE), tl.load(k + SHRINK).to(COMPUTE), tl.load(k + DAMPED).to(COMPUTE),
        tl.load(k + MU).to(COMPUTE), tl.load(k + LR).to(COMPUTE))

@triton.jit
def apply(k, p, g, s, x):
    l2, shrink, damped, mu, lr = k
    return (p - shrink * unless_off(shrink, p) - lr * (g + l2 * unless_off(l2, p)),)

@triton.jit
def answer_0(k, S, n, old, a, to):
    tl.store(to + 0, 1.0)

@triton.jit
def apply_with_momentum_buffer(k, p, g, s, x):
    l2, shrink, damped, mu, lr = k
    (momentum_buffer,) = s
    momentum_buffer_ = damped * (g + l2 * unless_off(l2, p)) + mu * momentum_buffer
    return (p - shrink * unless_off(shrink, p) - lr * momentum_buffer_, momentum_buffer_)

@triton.jit
def apply_with_momentum_buffer_nesterov_true(k, p, g, s, x):
    l2, shrink, damped, mu, lr = k
    (momentum_buffer,) = s
    y0 = g + l2 * unless_off(l2, p)
    momentum_buffer_ = damped * y0 + mu * momentum_buffer
    return (p - shrink * unless_off(shrink, p) - lr * (y0 + mu * momentum_buffer_), momentum_buffer_)

PROGRAMS = {
    "SGD": PrintedFunctions(values, apply=apply, answers=(answer_0,)),
    "SGDWithMomentumBuffer": PrintedFunctions(values, apply=apply_with_momentum_buffer, answers=(answer_0,)),
    "SGDWithMomentumBufferNesterovTrue": PrintedFunctions(values, apply=apply_with_momentum_buffer_nesterov_true,
        answers=(answer_0,)),
}
