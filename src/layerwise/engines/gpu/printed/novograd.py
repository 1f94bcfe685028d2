"""The programs of NovoGrad, as device functions.

Printed from rules/novograd.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import root, unless_off
from layerwise.engines.gpu.kernels.tables import columns
from layerwise.engines.gpu.program import Functions

# The numbers that are known before a tensor is read.
B2, A2, RESEEDS, C2, EPS_ROOT, EPS, INSIDE, B1, A1, LAM, LR, SHRINK = columns(12)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + B1).to(COMPUTE), tl.load(k + SHRINK).to(COMPUTE), tl.load(a + 0).to(COMPUTE),
        tl.load(a + 1).to(COMPUTE), tl.load(a + 2).to(COMPUTE))

@triton.jit
def terms_0(k, p, g, s):
    return (g,)

@triton.jit
def apply(k, p, g, s, x):
    b1, shrink, step, step_, step__ = k
    (m,) = s
    u = step_ * g
    u_ = u + step__ * unless_off(step__, p)
    m_ = u_ + b1 * m
    return (p - shrink * unless_off(shrink, p) - step * m_, m_)

@triton.jit
def answer_0(k, S, n, old, a, to):
    inside = tl.load(k + INSIDE) == 1.0
    norm = root(S[-1])
    squares = norm * norm
    new = tl.load(k + B2) * old[0] + tl.load(k + A2) * squares
    v = tl.where((tl.load(k + RESEEDS) != 0.0) & (old[0] == 0.0), squares, new)
    zero = tl.load(k + C2) * v + tl.load(k + EPS_ROOT) == 0.0
    d = tl.where(zero, 0.0, root(tl.where(zero, 1.0, tl.load(k + C2) * v + tl.load(k + EPS_ROOT)))) + tl.load(k + EPS)
    zero_ = v == 0.0
    tl.store(a + 0, tl.load(k + LR) * tl.where(inside, 1.0, 1.0 / d))
    tl.store(a + 1, tl.where(inside, tl.load(k + A1) / d, tl.load(k + A1)))
    tl.store(a + 2, tl.load(k + A1) * tl.load(k + LAM))
    tl.store(to + 0, norm)
    tl.store(to + 1, tl.where(zero_, 0.0, root(tl.where(zero_, 1.0, v))))
    tl.store(to + 2, 1.0)

@triton.jit
def remember(k, S, n, old):
    norm = root(S[-1])
    squares = norm * norm
    new = tl.load(k + B2) * old[0] + tl.load(k + A2) * squares
    v = tl.where((tl.load(k + RESEEDS) != 0.0) & (old[0] == 0.0), squares, new)
    return (v,)

PROGRAMS = {
    "NovoGrad": Functions(values, terms=(terms_0,), apply=apply, answers=(answer_0,), remember=remember),
}
