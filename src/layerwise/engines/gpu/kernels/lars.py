"""LARS (rules/lars.py), cut where the rule yields.

measure: Σp², Σx²  of x = g, or g + lam·p; g with what l2 adds to it          answer: ratio
apply: u = (lr·)ratio·(g + lam·p);   b ← mu·b + u;   p ← p − b, or p − (u + mu·b)
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import (
    array,
    at_least,
    at_most,
    chunk_of,
    count,
    goes,
    gradient,
    now_of,
    read,
    ready,
    squared,
    wants,
    write,
)
from layerwise.engines.gpu.kernels.tables import (
    ADAPT,
    ANSWERS,
    COEFFICIENTS,
    DECAYED,
    EPS,
    HIGH,
    L2,
    LAM,
    LOW,
    LR,
    MIN_NORM,
    NEVER,
    OF_UPDATE,
    OF_WEIGHTS,
    RATIO,
    S0,
    SCALE,
    SPECIFIC,
    VARYING,
    ZERO_RATIO,
    P,
    columns,
)

MU, ETA, DAMPENING, NESTEROV, NORM_DECAYED, LR_INSIDE, _known = columns(7, SPECIFIC)
LAM_X, LAM_R, DAMPED, LR_APPLY, OUTSIDE = columns(5, _known)


def settings(h: Any) -> dict[int, float]:
    """Return the coefficients that do not change from step to step."""
    return {
        MU.value: h.momentum,
        EPS.value: h.eps,
        ETA.value: h.trust_coefficient,
        DAMPENING.value: h.dampening,
        NESTEROV.value: float(h.nesterov),
        NORM_DECAYED.value: float(h.norm == "decayed"),
        LR_INSIDE.value: float(h.lr_in_momentum),
    }


@triton.jit(do_not_specialize=VARYING)
def coefficients(step_params, table, jobs, BLOCK: tl.constexpr):
    """Fill in the coefficients of each job, which `now` and its settings give."""
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = j < jobs
    t, lr, lam = now_of(step_params, table, jobs, j, mask)
    row = table + j * COEFFICIENTS
    inside = tl.load(row + LR_INSIDE, mask, other=0.0) != 0
    l2, decayed = tl.load(row + L2, mask, other=0.0), tl.load(row + NORM_DECAYED, mask, other=0.0)
    tl.store(row + LAM_X, l2 + lam * decayed, mask)
    tl.store(row + LAM_R, l2 + lam, mask)
    tl.store(row + DAMPED, tl.where(t == 1, 1.0, 1 - tl.load(row + DAMPENING, mask, other=0.0)), mask)
    tl.store(row + LR_APPLY, tl.where(inside, lr, 1.0), mask)
    tl.store(row + OUTSIDE, tl.where(inside, 1.0, lr), mask)


@triton.jit(do_not_specialize=VARYING)
def measure(
    step_params, coefficients, pointers, layers, chunks, clips, partials, sums_stride, skip, jobs,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr, COMPUTE: tl.constexpr,
    READY: tl.constexpr, SKIPS: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute Σp² and Σx² of each chunk."""
    layer, job, begin, n, place = chunk_of(layers, chunks, tl.program_id(0), CHUNK)
    p_at = array(pointers, job, begin, P, PARAM, ALIGNED)
    g_at = gradient(step_params, job, jobs, begin, GRAD, ALIGNED)
    wanted = wants(coefficients, job, tl.load(clips + layer), COMPUTE)
    lam = tl.load(coefficients + job * COEFFICIENTS + LAM_X).to(COMPUTE)
    pp, xx = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    if goes(skip, SKIPS):
        full = n // BLOCK * BLOCK
        for i in range(0, full, BLOCK):
            pp_, xx_ = measure_at(p_at, g_at, wanted, lam, i, n, COMPUTE, READY, BLOCK, True)
            pp += pp_
            xx += xx_
        if full < n:
            pp_, xx_ = measure_at(p_at, g_at, wanted, lam, full, n, COMPUTE, READY, BLOCK, False)
            pp += pp_
            xx += xx_
    to = partials + place
    tl.store(to, tl.sum(pp, 0))
    tl.store(to + sums_stride, tl.sum(xx, 0))


@triton.jit
def measure_at(
    p_at, g_at, wanted, lam, i, n,
    COMPUTE: tl.constexpr, READY: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    e = i + tl.arange(0, BLOCK)
    p = read(p_at + e, e < n, COMPUTE, FULL)
    x = ready(read(g_at + e, e < n, COMPUTE, FULL), wanted, e < n, READY) + lam * p
    return squared(p), squared(x)


@triton.jit
def answer_of(own, to, pp, xx):
    norm_p, norm_x, floor = tl.sqrt(pp), tl.sqrt(xx), tl.load(own + MIN_NORM)
    w, x = at_least(norm_p, floor), at_least(norm_x, floor)
    lr, lam, decayed = tl.load(own + LR), tl.load(own + LAM), tl.load(own + NORM_DECAYED) != 0
    d = tl.where(decayed, x, x + lam * w) + tl.load(own + EPS)
    ratio = tl.load(own + ETA) * w / tl.where(x == 0, 1.0, d)
    ratio = bounded(ratio, lr, tl.load(own + LOW), tl.load(own + HIGH))
    ratio = tl.where((w != 0) & (x != 0), ratio, tl.load(own + ZERO_RATIO))
    adapt = tl.load(own + ADAPT)
    ratio = tl.where((adapt == NEVER) | ((adapt == DECAYED) & (lam == 0)), 1.0, ratio)
    tl.store(to + OF_WEIGHTS, norm_p)
    tl.store(to + OF_UPDATE, norm_x)
    tl.store(to + RATIO, ratio)
    tl.store(to + SCALE, tl.load(own + LR_APPLY) * ratio)


@triton.jit
def bounded(ratio, lr, low, high):
    """Bound the ratio in units of lr, if there are bounds and lr is not 0."""
    asked = ((low != float("-inf")) | (high != float("inf"))) & (lr != 0)
    within = at_most(at_least(ratio / tl.where(lr == 0, 1.0, lr), low), high)
    return tl.where(asked, within, ratio)


@triton.jit(do_not_specialize=VARYING)
def apply(
    step_params, coefficients, pointers, layers, chunks, clips, answers, skip, jobs,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr, COMPUTE: tl.constexpr,
    MOMENTUM: tl.constexpr, READY: tl.constexpr, SKIPS: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write b and p, in reverse order, because caches may still hold the last chunks."""
    c = tl.num_programs(0) - 1 - tl.program_id(0)
    layer, job, begin, n, _ = chunk_of(layers, chunks, c, CHUNK)
    p_at = array(pointers, job, begin, P, PARAM, ALIGNED)
    g_at = gradient(step_params, job, jobs, begin, GRAD, ALIGNED)
    b_at = array(pointers, job, begin, S0, STATE0, ALIGNED)
    at, wanted = (p_at, g_at, b_at), wants(coefficients, job, tl.load(clips + layer), COMPUTE)
    k = coefficients_of(coefficients + job * COEFFICIENTS, tl.load(answers + layer * ANSWERS + SCALE), COMPUTE)
    if goes(skip, SKIPS):
        full = n // BLOCK * BLOCK
        for i in range(0, full, BLOCK):
            apply_at(at, wanted, k, i, n, COMPUTE, MOMENTUM, READY, BLOCK, True)
        if full < n:
            apply_at(at, wanted, k, full, n, COMPUTE, MOMENTUM, READY, BLOCK, False)
        count(step_params, coefficients, jobs, job, begin)


@triton.jit
def coefficients_of(own, scale, COMPUTE: tl.constexpr):
    lam, mu, damped = tl.load(own + LAM_R), tl.load(own + MU), tl.load(own + DAMPED)
    nesterov, outside = tl.load(own + NESTEROV), tl.load(own + OUTSIDE)
    return (
        lam.to(COMPUTE), scale.to(COMPUTE), mu.to(COMPUTE), damped.to(COMPUTE), nesterov != 0, outside.to(COMPUTE)
    )  # fmt: skip


@triton.jit
def apply_at(
    at, wanted, k, i, n, COMPUTE: tl.constexpr, MOMENTUM: tl.constexpr, READY: tl.constexpr,
    BLOCK: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    e = i + tl.arange(0, BLOCK)
    mask = e < n
    p_at, g_at, b_at = at
    lam, scale, mu, damped, nesterov, outside = k
    p_at += e
    p = read(p_at, mask, COMPUTE, FULL, True)
    g = ready(read(g_at + e, mask, COMPUTE, FULL, True), wanted, mask, READY)
    u = scale * (g + lam * p)
    if MOMENTUM:
        b_at += e
        b = mu * read(b_at, mask, COMPUTE, FULL, True) + damped * u
        write(b_at, b, mask, FULL, True)
        u = tl.where(nesterov, u + mu * b, b)
    write(p_at, p - outside * u, mask, FULL, True)
