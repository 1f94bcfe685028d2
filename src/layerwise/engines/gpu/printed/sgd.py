"""The programs of SGD, as device functions.

Printed from rules/sgd.py by `make generate`: change that, not this file.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import unless_off
from layerwise.engines.gpu.kernels.tables import columns
from layerwise.engines.gpu.program import Program

# The numbers that are known before a tensor is read.
L2, SHRINK, DAMPED, MU, LR = columns(5)


@triton.jit
def s_g_d_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    shrink = tl.load(k + SHRINK).to(COMPUTE)
    lr = tl.load(k + LR).to(COMPUTE)
    return (l2, shrink, lr)


@triton.jit
def s_g_d_apply(k, p, g, s, x):
    l2, shrink, lr = k
    g_ = g + l2 * unless_off(l2, p)
    return (p - shrink * unless_off(shrink, p) - lr * g_,)


@triton.jit
def s_g_d_report(k, S, n, old, to):
    tl.store(to + 0, 1.0)


@triton.jit
def s_g_d_with_momentum_buffer_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    shrink = tl.load(k + SHRINK).to(COMPUTE)
    damped = tl.load(k + DAMPED).to(COMPUTE)
    mu = tl.load(k + MU).to(COMPUTE)
    lr = tl.load(k + LR).to(COMPUTE)
    return (l2, shrink, damped, mu, lr)


@triton.jit
def s_g_d_with_momentum_buffer_apply(k, p, g, s, x):
    l2, shrink, damped, mu, lr = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    b_ = damped * g_ + mu * b
    return (p - shrink * unless_off(shrink, p) - lr * b_, b_)


@triton.jit
def s_g_d_with_momentum_buffer_report(k, S, n, old, to):
    tl.store(to + 0, 1.0)


@triton.jit
def s_g_d_with_momentum_buffer_nesterov_true_values(k, a, COMPUTE: tl.constexpr):
    l2 = tl.load(k + L2).to(COMPUTE)
    shrink = tl.load(k + SHRINK).to(COMPUTE)
    damped = tl.load(k + DAMPED).to(COMPUTE)
    mu = tl.load(k + MU).to(COMPUTE)
    lr = tl.load(k + LR).to(COMPUTE)
    return (l2, shrink, damped, mu, lr)


@triton.jit
def s_g_d_with_momentum_buffer_nesterov_true_apply(k, p, g, s, x):
    l2, shrink, damped, mu, lr = k
    (b,) = s
    g_ = g + l2 * unless_off(l2, p)
    b_ = damped * g_ + mu * b
    moved = g_ + mu * b_
    return (p - shrink * unless_off(shrink, p) - lr * moved, b_)


@triton.jit
def s_g_d_with_momentum_buffer_nesterov_true_report(k, S, n, old, to):
    tl.store(to + 0, 1.0)


PROGRAMS = {
    "SGD": Program(
        states=(),
        layer_states=(),
        rounds=(),
        keeps=None,
        keep_writes=0,
        apply_writes=0,
        cached=(),
        rereads=True,
        values=s_g_d_values,
        keep=None,
        terms=(),
        apply=s_g_d_apply,
        answers=(),
        report=s_g_d_report,
        remember=None,
    ),
    "SGDWithMomentumBuffer": Program(
        states=("momentum_buffer",),
        layer_states=(),
        rounds=(),
        keeps=None,
        keep_writes=0,
        apply_writes=1,
        cached=(),
        rereads=True,
        values=s_g_d_with_momentum_buffer_values,
        keep=None,
        terms=(),
        apply=s_g_d_with_momentum_buffer_apply,
        answers=(),
        report=s_g_d_with_momentum_buffer_report,
        remember=None,
    ),
    "SGDWithMomentumBufferNesterovTrue": Program(
        states=("momentum_buffer",),
        layer_states=(),
        rounds=(),
        keeps=None,
        keep_writes=0,
        apply_writes=1,
        cached=(),
        rereads=True,
        values=s_g_d_with_momentum_buffer_nesterov_true_values,
        keep=None,
        terms=(),
        apply=s_g_d_with_momentum_buffer_nesterov_true_apply,
        answers=(),
        report=s_g_d_with_momentum_buffer_nesterov_true_report,
        remember=None,
    ),
}
