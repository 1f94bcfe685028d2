"""The programs of AdamMini, as device functions.

Printed from rules/adammini.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import root, unless_off
from layerwise.engines.gpu.kernels.tables import columns
from layerwise.engines.gpu.program import Functions

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
    b1, a1, shrink, step = k
    (m,) = s
    m_ = b1 * m + a1 * g
    return (p - shrink * unless_off(shrink, p) - step * m_, m_)

@triton.jit
def answer_0(k, S, n, old, a, to):
    gg = S[-1] / n
    rms = root(gg)
    v = tl.load(k + B2) * old[0] + tl.load(k + A2) * (rms * rms)
    zero = tl.load(k + C2) * v + tl.load(k + EPS_ROOT) == 0.0
    d = tl.where(zero, 0.0, root(tl.where(zero, 1.0, tl.load(k + C2) * v + tl.load(k + EPS_ROOT)))) + tl.load(k + EPS)
    zero_ = v == 0.0
    tl.store(a + 0, tl.load(k + LR) / d)
    tl.store(to + 0, rms)
    tl.store(to + 1, tl.where(zero_, 0.0, root(tl.where(zero_, 1.0, v))))
    tl.store(to + 2, 1.0)

@triton.jit
def remember(k, S, n, old):
    gg = S[-1] / n
    rms = root(gg)
    v = tl.load(k + B2) * old[0] + tl.load(k + A2) * (rms * rms)
    return (v,)

PROGRAMS = {
    "AdamMini": Functions(values, terms=(terms_0,), apply=apply, answers=(answer_0,), remember=remember),
}
