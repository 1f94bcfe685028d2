"""The programs of StableAdamW, as device functions.

Printed from rules/stableadamw.py by `make generate`: change that, not this file.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import at_least, root, unless_off
from layerwise.engines.gpu.kernels.tables import columns
from layerwise.engines.gpu.program import Program

# The numbers that are known before a tensor is read.
B1, A1, B2, A2, EPS_ROOT, EPS, THRESHOLD, LR, LAM, LAM_SIZE = columns(10)


@triton.jit
def stable_adam_w_values(k, a, COMPUTE: tl.constexpr):
    b1 = tl.load(k + B1).to(COMPUTE)
    a1 = tl.load(k + A1).to(COMPUTE)
    b2 = tl.load(k + B2).to(COMPUTE)
    a2 = tl.load(k + A2).to(COMPUTE)
    eps_root = tl.load(k + EPS_ROOT).to(COMPUTE)
    eps = tl.load(k + EPS).to(COMPUTE)
    lam_ = tl.load(a + 0).to(COMPUTE)
    size = tl.load(a + 1).to(COMPUTE)
    return (b1, a1, b2, a2, eps_root, eps, lam_, size)


@triton.jit
def stable_adam_w_keep(k, p, g, s):
    b1, a1, b2, a2, eps_root, eps, lam_, size = k
    m, v = s
    m_ = b1 * m + a1 * g
    v_ = b2 * v + a2 * (g * g)
    return (m_, v_)


@triton.jit
def stable_adam_w_terms(k, p, g, s):
    b1, a1, b2, a2, eps_root, eps, lam_, size = k
    m, v = s
    root_v = root(v + eps_root)
    return (g / at_least(root_v, eps),)


@triton.jit
def stable_adam_w_apply(k, p, g, s, x):
    b1, a1, b2, a2, eps_root, eps, lam_, size = k
    m, v = s
    root_v = root(v + eps_root)
    r = m / (root_v + eps)
    return (p - lam_ * unless_off(lam_, p) - size * r, m, v)


@triton.jit
def stable_adam_w_answer(k, S, n, old, a):
    uu = S[0] / n
    rms = root(uu)
    ratio = 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0)
    size = tl.load(k + LR) * ratio
    lam = tl.load(k + LAM) + tl.load(k + LAM_SIZE) * size
    tl.store(a + 0, lam)
    tl.store(a + 1, size)


@triton.jit
def stable_adam_w_report(k, S, n, old, to):
    uu = S[0] / n
    rms = root(uu)
    ratio = 1.0 / at_least(rms / tl.load(k + THRESHOLD), 1.0)
    tl.store(to + 0, rms)
    tl.store(to + 1, ratio)


@triton.jit
def stable_adam_w_clip_threshold_none_values(k, a, COMPUTE: tl.constexpr):
    b1 = tl.load(k + B1).to(COMPUTE)
    a1 = tl.load(k + A1).to(COMPUTE)
    b2 = tl.load(k + B2).to(COMPUTE)
    a2 = tl.load(k + A2).to(COMPUTE)
    eps_root = tl.load(k + EPS_ROOT).to(COMPUTE)
    eps = tl.load(k + EPS).to(COMPUTE)
    lr = tl.load(k + LR).to(COMPUTE)
    lam_ = (tl.load(k + LAM) + tl.load(k + LAM_SIZE) * tl.load(k + LR)).to(COMPUTE)
    return (b1, a1, b2, a2, eps_root, eps, lr, lam_)


@triton.jit
def stable_adam_w_clip_threshold_none_apply(k, p, g, s, x):
    b1, a1, b2, a2, eps_root, eps, lr, lam_ = k
    m, v = s
    m_ = b1 * m + a1 * g
    v_ = b2 * v + a2 * (g * g)
    root_v = root(v_ + eps_root)
    r = m_ / (root_v + eps)
    return (p - lam_ * unless_off(lam_, p) - lr * r, m_, v_)


@triton.jit
def stable_adam_w_clip_threshold_none_report(k, S, n, old, to):
    tl.store(to + 0, 1.0)


PROGRAMS = {
    "StableAdamW": Program(
        states=("exp_avg", "exp_avg_sq"),
        layer_states=(),
        rounds=(("MeanSquare",),),
        keeps=0,
        keep_writes=3,
        apply_writes=0,
        cached=(),
        rereads=True,
        values=stable_adam_w_values,
        keep=stable_adam_w_keep,
        terms=(stable_adam_w_terms,),
        apply=stable_adam_w_apply,
        answers=(stable_adam_w_answer,),
        report=stable_adam_w_report,
        remember=None,
    ),
    "StableAdamWClipThresholdNone": Program(
        states=("exp_avg", "exp_avg_sq"),
        layer_states=(),
        rounds=(),
        keeps=None,
        keep_writes=0,
        apply_writes=3,
        cached=(),
        rereads=True,
        values=stable_adam_w_clip_threshold_none_values,
        keep=None,
        terms=(),
        apply=stable_adam_w_clip_threshold_none_apply,
        answers=(),
        report=stable_adam_w_clip_threshold_none_report,
        remember=None,
    ),
}
