"""The programs of AdamMini, as device functions.

Printed from rules/adammini.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import PrintedFunctions
from layerwise.engines.gpu.kernels.common import root, unless_off
from layerwise.engines.gpu.kernels.tables import columns

# The numbers that are known before a tensor is read.
B1, A1, B2, A2, C2, EPS_ROOT, EPS, LR, SHRINK = columns(9)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + B1).to(COMPUTE), tl.load(k + A1).to(COMPUTE), tl.load(k + SHRINK).to(COMPUTE),
        tl.load(a + 0).to(COMPUTE))

@triton.jit
def terms_0(k, p, g, s):
    return (g,)

@triton.jit
def apply(k, p, g, s, x):
    b1, a1, shrink, answer0 = k
    (exp_avg,) = s
    exp_avg_ = b1 * exp_avg + a1 * g
    return (p - shrink * unless_off(shrink, p) - answer0 * exp_avg_, exp_avg_)

@triton.jit
def answer_0(k, S, n, old, a, to):
    mean0 = S[-1] / n
    gradient_rms = root(mean0)
    exp_avg_sq = tl.load(k + B2) * old[0] + tl.load(k + A2) * (gradient_rms * gradient_rms)
    y2 = tl.load(k + C2) * exp_avg_sq + tl.load(k + EPS_ROOT)
    y3 = tl.where(y2 == 0.0, 0.0, root(tl.where(y2 == 0.0, 1.0, y2)))
    y4 = root(tl.where(exp_avg_sq == 0.0, 1.0, exp_avg_sq))
    average_rms = tl.where(exp_avg_sq == 0.0, 0.0, y4)
    tl.store(a + 0, tl.load(k + LR) / (y3 + tl.load(k + EPS)))
    tl.store(to + 0, gradient_rms)
    tl.store(to + 1, average_rms)
    tl.store(to + 2, 1.0)

@triton.jit
def remember(k, S, n, old):
    mean0 = S[-1] / n
    gradient_rms = root(mean0)
    exp_avg_sq = tl.load(k + B2) * old[0] + tl.load(k + A2) * (gradient_rms * gradient_rms)
    return (exp_avg_sq,)

PROGRAMS = {
    "AdamMini": PrintedFunctions(values, terms=(terms_0,), apply=apply, answers=(answer_0,), remember=remember),
}
