"""The programs of AdamMini, as device functions.

Printed from rules/adammini.py by `make generate`: change that, not this file.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import root, unless_off
from layerwise.engines.gpu.kernels.tables import columns
from layerwise.engines.gpu.program import Program

# The numbers that are known before a tensor is read.
B1, A1, B2, A2, C2, EPS_ROOT, EPS, LR, SHRINK = columns(9)


@triton.jit
def adam_mini_values(k, a, COMPUTE: tl.constexpr):
    b1 = tl.load(k + B1).to(COMPUTE)
    a1 = tl.load(k + A1).to(COMPUTE)
    shrink = tl.load(k + SHRINK).to(COMPUTE)
    step = tl.load(a + 0).to(COMPUTE)
    return (b1, a1, shrink, step)


@triton.jit
def adam_mini_terms(k, p, g, s):
    return (g,)


@triton.jit
def adam_mini_apply(k, p, g, s, x):
    b1, a1, shrink, step = k
    (m,) = s
    m_ = b1 * m + a1 * g
    return (p - shrink * unless_off(shrink, p) - step * m_, m_)


@triton.jit
def adam_mini_answer(k, S, n, old, a):
    gg = S[0] / n
    rms = root(gg)
    v = tl.load(k + B2) * old[0] + tl.load(k + A2) * (rms * rms)
    zero = tl.load(k + C2) * v + tl.load(k + EPS_ROOT) == 0.0
    d = tl.where(zero, 0.0, root(tl.where(zero, 1.0, tl.load(k + C2) * v + tl.load(k + EPS_ROOT)))) + tl.load(k + EPS)
    tl.store(a + 0, tl.load(k + LR) / d)


@triton.jit
def adam_mini_report(k, S, n, old, to):
    gg = S[0] / n
    rms = root(gg)
    v = tl.load(k + B2) * old[0] + tl.load(k + A2) * (rms * rms)
    zero = v == 0.0
    tl.store(to + 0, rms)
    tl.store(to + 1, tl.where(zero, 0.0, root(tl.where(zero, 1.0, v))))
    tl.store(to + 2, 1.0)


@triton.jit
def adam_mini_remember(k, S, n, old):
    gg = S[0] / n
    rms = root(gg)
    v = tl.load(k + B2) * old[0] + tl.load(k + A2) * (rms * rms)
    return (v,)


PROGRAMS = {
    "AdamMini": Program(
        states=("exp_avg",),
        layer_states=("exp_avg_sq",),
        rounds=(("MeanSquare",),),
        keeps=None,
        keep_writes=0,
        apply_writes=1,
        cached=(),
        rereads=True,
        values=adam_mini_values,
        keep=None,
        terms=(adam_mini_terms,),
        apply=adam_mini_apply,
        answers=(adam_mini_answer,),
        report=adam_mini_report,
        remember=adam_mini_remember,
    ),
}
