"""The programs of NovoGrad, as device functions.

Printed from rules/novograd.py by `make generate`: change that, not this file.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import root, unless_off
from layerwise.engines.gpu.kernels.tables import columns
from layerwise.engines.gpu.program import Program

# The numbers that are known before a tensor is read.
B2, A2, RESEEDS, C2, EPS_ROOT, EPS, INSIDE, B1, A1, LAM, LR, SHRINK = columns(12)


@triton.jit
def novo_grad_values(k, a, COMPUTE: tl.constexpr):
    b1 = tl.load(k + B1).to(COMPUTE)
    shrink = tl.load(k + SHRINK).to(COMPUTE)
    step = tl.load(a + 0).to(COMPUTE)
    step_ = tl.load(a + 1).to(COMPUTE)
    step__ = (tl.load(k + A1) * tl.load(k + LAM)).to(COMPUTE)
    return (b1, shrink, step, step_, step__)


@triton.jit
def novo_grad_terms(k, p, g, s):
    return (g,)


@triton.jit
def novo_grad_apply(k, p, g, s, x):
    b1, shrink, step, step_, step__ = k
    (m,) = s
    u = step_ * g
    u_ = u + step__ * unless_off(step__, p)
    m_ = u_ + b1 * m
    return (p - shrink * unless_off(shrink, p) - step * m_, m_)


@triton.jit
def novo_grad_answer(k, S, n, old, a):
    gg = S[0]
    inside = tl.load(k + INSIDE) == 1.0
    norm = root(gg)
    squares = norm * norm
    new = tl.load(k + B2) * old[0] + tl.load(k + A2) * squares
    v = tl.where((tl.load(k + RESEEDS) != 0.0) & (old[0] == 0.0), squares, new)
    zero = tl.load(k + C2) * v + tl.load(k + EPS_ROOT) == 0.0
    d = tl.where(zero, 0.0, root(tl.where(zero, 1.0, tl.load(k + C2) * v + tl.load(k + EPS_ROOT)))) + tl.load(k + EPS)
    tl.store(a + 0, tl.load(k + LR) * tl.where(inside, 1.0, 1.0 / d))
    tl.store(a + 1, tl.where(inside, tl.load(k + A1) / d, tl.load(k + A1)))


@triton.jit
def novo_grad_report(k, S, n, old, to):
    gg = S[0]
    norm = root(gg)
    squares = norm * norm
    new = tl.load(k + B2) * old[0] + tl.load(k + A2) * squares
    v = tl.where((tl.load(k + RESEEDS) != 0.0) & (old[0] == 0.0), squares, new)
    zero = v == 0.0
    tl.store(to + 0, norm)
    tl.store(to + 1, tl.where(zero, 0.0, root(tl.where(zero, 1.0, v))))
    tl.store(to + 2, 1.0)


@triton.jit
def novo_grad_remember(k, S, n, old):
    gg = S[0]
    norm = root(gg)
    squares = norm * norm
    new = tl.load(k + B2) * old[0] + tl.load(k + A2) * squares
    v = tl.where((tl.load(k + RESEEDS) != 0.0) & (old[0] == 0.0), squares, new)
    return (v,)


PROGRAMS = {
    "NovoGrad": Program(
        states=("exp_avg",),
        layer_states=("exp_avg_sq",),
        rounds=(("Squares",),),
        keeps=None,
        keep_writes=0,
        apply_writes=1,
        cached=(),
        rereads=True,
        values=novo_grad_values,
        keep=None,
        terms=(novo_grad_terms,),
        apply=novo_grad_apply,
        answers=(novo_grad_answer,),
        report=novo_grad_report,
        remember=novo_grad_remember,
    ),
}
