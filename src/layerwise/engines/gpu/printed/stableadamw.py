"""The programs of StableAdamW, as device functions.

Printed from rules/stableadamw.py by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import at_least, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns
from layerwise.engines.gpu.program import Functions

# The numbers that are known before a tensor is read.
B1, A1, B2, A2, EPS_ROOT, EPS, THRESHOLD, LR, LAM, LAM_SIZE = columns(10)

@triton.jit
def values(k, a, COMPUTE: tl.constexpr):
    return (tl.load(k + B1).to(COMPUTE), tl.load(k + A1).to(COMPUTE), tl.load(k + B2).to(COMPUTE),
        tl.load(k + A2).to(COMPUTE), tl.load(k + EPS_ROOT).to(COMPUTE), tl.load(k + EPS).to(COMPUTE),
        tl.load(k + LR).to(COMPUTE), tl.load(a + 0).to(COMPUTE), tl.load(a + 1).to(COMPUTE))

@triton.jit
def keep(k, p, g, s):
    b1, a1, b2, a2, eps_root, eps, lr, lam, size = k
    m, v = s
    m_ = b1 * m + a1 * g
    v_ = b2 * v + a2 * (g * g)
    return (m_, v_)

@triton.jit
def terms_0(k, p, g, s):
    b1, a1, b2, a2, eps_root, eps, lr, lam, size = k
    m, v = s
    root_v = root(v + eps_root)
    return (g / at_least(root_v, eps),)

@triton.jit
def apply(k, p, g, s, x):
    b1, a1, b2, a2, eps_root, eps, lr, lam, size = k
    m, v = s
    root_v = root(v + eps_root)
    r = m / (root_v + eps)
    return (p - lam * unless_off(lam, p) - size * r, m, v)

@triton.jit
def answer_0(k, S, n, old, a, to):
    uu = S[-1] / n
    rms = root(uu)
    ratio = 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0)
    size = tl.load(k + LR) * ratio
    lam = tl.load(k + LAM) + tl.load(k + LAM_SIZE) * size
    tl.store(a + 0, lam)
    tl.store(a + 1, size)
    tl.store(to + 0, rms)
    tl.store(to + 1, ratio)

@triton.jit
def apply_clip_threshold_none(k, p, g, s, x):
    b1, a1, b2, a2, eps_root, eps, lr, lam, size = k
    m, v = s
    m_ = b1 * m + a1 * g
    v_ = b2 * v + a2 * (g * g)
    root_v = root(v_ + eps_root)
    r = m_ / (root_v + eps)
    return (p - lam * unless_off(lam, p) - lr * r, m_, v_)

@triton.jit
def answer_0_clip_threshold_none(k, S, n, old, a, to):
    lam = tl.load(k + LAM) + tl.load(k + LAM_SIZE) * tl.load(k + LR)
    tl.store(a + 0, lam)
    tl.store(to + 0, 1.0)

PROGRAMS = {
    "StableAdamW": Functions(values, keep=keep, terms=(terms_0,), apply=apply, answers=(answer_0,)),
    "StableAdamWClipThresholdNone": Functions(values, apply=apply_clip_threshold_none,
        answers=(answer_0_clip_threshold_none,)),
}
