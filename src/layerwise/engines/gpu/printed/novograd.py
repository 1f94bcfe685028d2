"""The programs of NovoGrad, as device functions.

Printed from rules/novograd.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import PrintedFunctions
from layerwise.engines.gpu.kernels.common import root, unless_off
from layerwise.engines.gpu.kernels.tables import columns

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
    b1, shrink, answer0, answer1, answer2 = k
    (exp_avg,) = s
    exp_avg_ = answer1 * g + answer2 * unless_off(answer2, p) + b1 * exp_avg
    return (p - shrink * unless_off(shrink, p) - answer0 * exp_avg_, exp_avg_)

@triton.jit
def answer_0(k, S, n, old, a, to):
    gradient_norm = root(S[-1])
    y1 = tl.load(k + A2) * (gradient_norm * gradient_norm)
    exp_avg_sq = tl.where((tl.load(k + RESEEDS) != 0.0) & (old[0] == 0.0), gradient_norm * gradient_norm,
        tl.load(k + B2) * old[0] + y1)
    y3 = tl.load(k + C2) * exp_avg_sq + tl.load(k + EPS_ROOT)
    y4 = tl.where(y3 == 0.0, 0.0, root(tl.where(y3 == 0.0, 1.0, y3)))
    y5 = tl.where(tl.load(k + INSIDE) == 1.0, 1.0, 1.0 / (y4 + tl.load(k + EPS)))
    y6 = tl.where(tl.load(k + INSIDE) == 1.0, tl.load(k + A1) / (y4 + tl.load(k + EPS)), tl.load(k + A1))
    y7 = root(tl.where(exp_avg_sq == 0.0, 1.0, exp_avg_sq))
    average_norm = tl.where(exp_avg_sq == 0.0, 0.0, y7)
    tl.store(a + 0, tl.load(k + LR) * y5)
    tl.store(a + 1, y6)
    tl.store(a + 2, tl.load(k + A1) * tl.load(k + LAM))
    tl.store(to + 0, gradient_norm)
    tl.store(to + 1, average_norm)
    tl.store(to + 2, 1.0)

@triton.jit
def remember(k, S, n, old):
    gradient_norm = root(S[-1])
    y1 = tl.load(k + A2) * (gradient_norm * gradient_norm)
    exp_avg_sq = tl.where((tl.load(k + RESEEDS) != 0.0) & (old[0] == 0.0), gradient_norm * gradient_norm,
        tl.load(k + B2) * old[0] + y1)
    return (exp_avg_sq,)

PROGRAMS = {
    "NovoGrad": PrintedFunctions(values, terms=(terms_0,), apply=apply, answers=(answer_0,), remember=remember),
}
