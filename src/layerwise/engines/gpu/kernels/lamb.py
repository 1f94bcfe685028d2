"""LAMB (rules/lamb.py), cut where the rule yields.

    m ← b1·m + a1·g;   v ← b2·v + a2·g²;   p ← shrink·p;   u = c1·m / (√(c2·v + eps_root) + eps);   r = u + lam·p
    measure: Σp², Σr²          answer: ratio          apply: p ← p − lr·ratio·r

`apply` computes r again, because a root and a quotient cost less than memory. With LATE it also computes the moments
again and stores them, which `measure` then leaves as they are: others complete the sums, or nothing is measured, or r
has to be of moments that have not been rounded.
"""

from __future__ import annotations

from math import inf, log
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
    one_minus_power,
    read,
    ready,
    root,
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
    MIN_NORM,
    NEVER,
    OF_UPDATE,
    OF_WEIGHTS,
    RATIO,
    S0,
    S1,
    SCALE,
    SPECIFIC,
    VARYING,
    ZERO_RATIO,
    P,
    columns,
    number,
)

B1, A1, B2, A2, EPS_ROOT, MAX_WEIGHT, TRUST_EPS, LOG_B1, LOG_B2, CORRECTION, DECAY, _known = columns(12, SPECIFIC)
C1, C2, LAM_G, LAM_R, SHRINK, LR_APPLY = columns(6, _known)
UNCORRECTED, CORRECTED, CORRECTED_LR = number(0.0), number(1.0), number(2.0)
IN_RATIO, DECOUPLED, IN_GRADIENT = number(0.0), number(1.0), number(2.0)


def settings(h: Any) -> dict[int, float]:
    """Return the coefficients that do not change from step to step."""
    b1, b2 = h.betas
    return {
        B1.value: b1,
        EPS.value: h.eps,
        A1.value: 1 - b1 if h.grad_averaging else 1.0,
        B2.value: b2,
        A2.value: 1 - b2,
        LOG_B1.value: log(b1) if b1 else -inf,
        LOG_B2.value: log(b2) if b2 else -inf,
        EPS_ROOT.value: h.eps_root,
        MAX_WEIGHT.value: h.max_weight_norm or inf,
        TRUST_EPS.value: h.trust_eps,
        CORRECTION.value: {False: UNCORRECTED, True: CORRECTED, "lr": CORRECTED_LR}[h.bias_correction].value,
        DECAY.value: {"ratio": IN_RATIO, "decoupled": DECOUPLED, "l2": IN_GRADIENT}[h.decay].value,
    }


@triton.jit(do_not_specialize=VARYING)
def coefficients(step_params, table, jobs, BLOCK: tl.constexpr):
    """Fill in the coefficients of each job, which `now` and its settings give."""
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = j < jobs
    t, lr, lam = now_of(step_params, table, jobs, j, mask)
    row = table + j * COEFFICIENTS
    c1 = one_minus_power(tl.load(row + LOG_B1, mask, other=-1.0), t)
    c2 = one_minus_power(tl.load(row + LOG_B2, mask, other=-1.0), t)
    correction, decay = tl.load(row + CORRECTION, mask, other=0.0), tl.load(row + DECAY, mask, other=0.0)
    tl.store(row + C1, tl.where(correction == CORRECTED, 1 / c1, 1.0), mask)
    tl.store(row + C2, tl.where(correction == CORRECTED, 1 / c2, 1.0), mask)
    tl.store(row + LR_APPLY, tl.where(correction == CORRECTED_LR, lr * (tl.sqrt(c2) / c1), lr), mask)
    tl.store(row + LAM_R, tl.where(decay == IN_RATIO, lam, 0.0), mask)
    tl.store(row + SHRINK, tl.where(decay == DECOUPLED, 1 - lr * lam, 1.0), mask)
    tl.store(row + LAM_G, tl.load(row + L2, mask, other=0.0) + tl.where(decay == IN_GRADIENT, lam, 0.0), mask)


@triton.jit
def coefficients_of(own, COMPUTE: tl.constexpr):
    b1, a1, b2, a2 = tl.load(own + B1), tl.load(own + A1), tl.load(own + B2), tl.load(own + A2)
    c1, c2, eps_root, eps = tl.load(own + C1), tl.load(own + C2), tl.load(own + EPS_ROOT), tl.load(own + EPS)
    lam_g, lam_r, shrink = tl.load(own + LAM_G), tl.load(own + LAM_R), tl.load(own + SHRINK)
    moments = b1.to(COMPUTE), a1.to(COMPUTE), b2.to(COMPUTE), a2.to(COMPUTE), lam_g.to(COMPUTE)
    return (
        moments,
        (c1.to(COMPUTE), c2.to(COMPUTE), eps_root.to(COMPUTE), eps.to(COMPUTE), lam_r.to(COMPUTE)),
        shrink.to(COMPUTE),
    )


@triton.jit
def moments(p, g, m, v, k):
    b1, a1, b2, a2, lam_g = k
    g += lam_g * p
    return b1 * m + a1 * g, b2 * v + a2 * (g * g)


@triton.jit
def update(p, m, v, k):
    """Return r, given p after decoupled decay."""
    c1, c2, eps_root, eps, lam_r = k
    return c1 * m / (root(c2 * v + eps_root) + eps) + lam_r * p


@triton.jit
def places(
    step_params, pointers, job, jobs, begin,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """Return where p, g, m and v of a chunk begin."""
    p_at = array(pointers, job, begin, P, PARAM, ALIGNED)
    g_at = gradient(step_params, job, jobs, begin, GRAD, ALIGNED)
    m_at = array(pointers, job, begin, S0, STATE0, ALIGNED)
    v_at = array(pointers, job, begin, S1, STATE1, ALIGNED)
    return p_at, g_at, m_at, v_at


@triton.jit(do_not_specialize=VARYING)
def measure(
    step_params, coefficients, pointers, layers, chunks, clips, partials, sums_stride, skip, jobs,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr, COMPUTE: tl.constexpr,
    LATE: tl.constexpr, READY: tl.constexpr, SKIPS: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the new moments, and Σp² and Σr² of each chunk."""
    layer, job, begin, n, place = chunk_of(layers, chunks, tl.program_id(0), CHUNK)
    at = places(step_params, pointers, job, jobs, begin, PARAM, GRAD, STATE0, STATE1, ALIGNED)
    wanted = wants(coefficients, job, tl.load(clips + layer), COMPUTE)
    k = coefficients_of(coefficients + job * COEFFICIENTS, COMPUTE)
    pp, rr = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    if goes(skip, SKIPS):
        full = n // BLOCK * BLOCK
        for i in range(0, full, BLOCK):
            pp_, rr_ = measure_at(at, wanted, k, i, n, COMPUTE, LATE, READY, BLOCK, True)
            pp += pp_
            rr += rr_
        if full < n:
            pp_, rr_ = measure_at(at, wanted, k, full, n, COMPUTE, LATE, READY, BLOCK, False)
            pp += pp_
            rr += rr_
    to = partials + place
    tl.store(to, tl.sum(pp, 0))
    tl.store(to + sums_stride, tl.sum(rr, 0))


@triton.jit
def measure_at(
    at, wanted, k, i, n, COMPUTE: tl.constexpr, LATE: tl.constexpr, READY: tl.constexpr,
    BLOCK: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    e = i + tl.arange(0, BLOCK)
    mask = e < n
    p_at, g_at, m_at, v_at = at
    of_moments, of_update, shrink = k
    m_at += e
    v_at += e
    p = read(p_at + e, mask, COMPUTE, FULL)
    g = ready(read(g_at + e, mask, COMPUTE, FULL, not LATE), wanted, mask, READY)
    m, v = read(m_at, mask, COMPUTE, FULL), read(v_at, mask, COMPUTE, FULL)
    m, v = moments(p, g, m, v, of_moments)
    if not LATE:
        write(m_at, m, mask, FULL)
        write(v_at, v, mask, FULL)
    p *= shrink
    r = update(p, m, v, of_update)
    if not FULL:
        r = tl.where(mask, r, 0.0)  # avoid 0/0 past the end
    return squared(p), squared(r)


@triton.jit
def answer_of(own, to, pp, rr):
    norm_p, norm_r = tl.sqrt(pp), tl.sqrt(rr)
    w, x = at_least(norm_p, tl.load(own + MIN_NORM)), at_least(norm_r, tl.load(own + MIN_NORM))
    ratio = at_most(w, tl.load(own + MAX_WEIGHT)) / (tl.where(x == 0, 1.0, x) + tl.load(own + TRUST_EPS))
    ratio = at_most(at_least(ratio, tl.load(own + LOW)), tl.load(own + HIGH))
    ratio = tl.where((w != 0) & (x != 0), ratio, tl.load(own + ZERO_RATIO))
    adapt = tl.load(own + ADAPT)
    ratio = tl.where((adapt == NEVER) | ((adapt == DECAYED) & (tl.load(own + LAM) == 0)), 1.0, ratio)
    tl.store(to + OF_WEIGHTS, norm_p)
    tl.store(to + OF_UPDATE, norm_r)
    tl.store(to + RATIO, ratio)
    tl.store(to + SCALE, tl.load(own + LR_APPLY) * ratio)


@triton.jit(do_not_specialize=VARYING)
def apply(
    step_params, coefficients, pointers, layers, chunks, clips, answers, skip, jobs,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr, COMPUTE: tl.constexpr,
    LATE: tl.constexpr, READY: tl.constexpr, SKIPS: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write p, and if LATE the moments, in reverse order, because caches may still hold the last chunks."""
    c = tl.num_programs(0) - 1 - tl.program_id(0)
    layer, job, begin, n, _ = chunk_of(layers, chunks, c, CHUNK)
    at = places(step_params, pointers, job, jobs, begin, PARAM, GRAD, STATE0, STATE1, ALIGNED)
    wanted = wants(coefficients, job, tl.load(clips + layer), COMPUTE)
    k, step = (
        coefficients_of(coefficients + job * COEFFICIENTS, COMPUTE),
        tl.load(answers + layer * ANSWERS + SCALE).to(COMPUTE),
    )
    if goes(skip, SKIPS):
        full = n // BLOCK * BLOCK
        for i in range(0, full, BLOCK):
            apply_at(at, wanted, k, step, i, n, COMPUTE, LATE, READY, BLOCK, True)
        if full < n:
            apply_at(at, wanted, k, step, full, n, COMPUTE, LATE, READY, BLOCK, False)
        count(step_params, coefficients, jobs, job, begin)


@triton.jit
def apply_at(
    at, wanted, k, step, i, n, COMPUTE: tl.constexpr, LATE: tl.constexpr, READY: tl.constexpr,
    BLOCK: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    e = i + tl.arange(0, BLOCK)
    mask = e < n
    p_at, g_at, m_at, v_at = at
    of_moments, of_update, shrink = k
    p_at += e
    m_at += e
    v_at += e
    p = read(p_at, mask, COMPUTE, FULL, True)
    m, v = read(m_at, mask, COMPUTE, FULL, True), read(v_at, mask, COMPUTE, FULL, True)
    if LATE:
        g = ready(read(g_at + e, mask, COMPUTE, FULL, True), wanted, mask, READY)
        m, v = moments(p, g, m, v, of_moments)
        write(m_at, m, mask, FULL, True)
        write(v_at, v, mask, FULL, True)
    p *= shrink
    write(p_at, p - step * update(p, m, v, of_update), mask, FULL, True)
