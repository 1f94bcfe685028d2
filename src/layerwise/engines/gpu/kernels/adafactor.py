"""Adafactor (rules/adafactor.py), cut where the rule yields: all layers, and those whose V is not factored.

    V ← b2·V + a2·(g² + eps1);   u = g/√V
    measure: Σp², Σu²          answer: alpha, clip
    apply: e ← b1·e + scale·u;   p ← shrink·p − after·e,   or without momentum  p ← shrink·p − scale·u

planes.py has the kernels for a factored V, up to the sums. With LATE `apply` stores V, as it stores LAMB's moments.
"""

from __future__ import annotations

from math import inf
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
    root,
    squared,
    sum_of,
    sum_of_layer,
    value_of,
    wants,
    write,
)
from layerwise.engines.gpu.kernels.tables import (
    AFTER,
    ANSWERS,
    BETA2,
    COEFFICIENTS,
    ENTRIES,
    EPS,
    JOB,
    LAM,
    LAYER,
    OF_UPDATE,
    OF_WEIGHTS,
    PLANE,
    RATIO,
    S0,
    S1,
    SCALE,
    SHRINK,
    SPECIFIC,
    TILES,
    TILES_FIRST,
    VARYING,
    P,
    columns,
    number,
)

B1, LR_INSIDE, EXPONENT, CAP, OFFSET, THRESHOLD, SCALED, EPS2, _more = columns(9, SPECIFIC)
RELATIVE, LR_CAP, WARMUP, DECAY, EPS_ADDED, B2, A2, RHO, LR_DECAY = columns(9, _more)
BY_LR, BY_STEP, BY_ITSELF = number(0.0), number(1.0), number(2.0)
ABSOLUTE, LR_SCALES, LR_CAPS = number(0.0), number(1.0), number(2.0)  # what RELATIVE says lr is


def settings(h: Any) -> dict[int, float]:
    """Return the coefficients that do not change from step to step."""
    fixed = {
        EPS: h.eps[0],
        EPS2: h.eps[1],
        EPS_ADDED: h.eps[0] if h.eps_mode == "add" else 0.0,
        B1: h.beta1 or 0.0,
        # Without momentum the step is an average of itself alone.
        LR_INSIDE: float(h.lr_in_momentum or h.beta1 is None),
        EXPONENT: max(h.beta2_decay, -1e9),  # in effect −∞, but its product with log 1 is a number
        CAP: inf if h.beta2_cap is None else h.beta2_cap,
        OFFSET: h.decay_offset,
        THRESHOLD: h.clip_threshold or inf,
        SCALED: float(h.scale_parameter),
        RELATIVE: {False: ABSOLUTE, "factor": LR_SCALES, "cap": LR_CAPS}[h.relative_step].value,
        LR_CAP: h.lr_cap,
        WARMUP: float(h.warmup_init),
        DECAY: {"lr": BY_LR, "step": BY_STEP, "none": BY_ITSELF}[h.decay_scale].value,
    }
    return {key.value: value for key, value in fixed.items()}


@triton.jit(do_not_specialize=VARYING)
def coefficients(step_params, table, jobs, BLOCK: tl.constexpr):
    """Fill in the coefficients of each job, which `now` and its settings give."""
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = j < jobs
    t, lr, _ = now_of(step_params, table, jobs, j, mask)
    row = table + j * COEFFICIENTS
    offset = tl.load(row + OFFSET, mask, other=0.0)
    shifted = tl.where(offset == 0, t, at_least(t - offset, 1.0))
    b2 = 1 - tl.exp(tl.log(shifted) * tl.load(row + EXPONENT, mask, other=-1.0))
    given = value_of(step_params, jobs, j, mask, BETA2)  # nan where b2 follows t
    b2 = tl.where(given == given, given, b2)
    b2 = at_most(b2, tl.load(row + CAP, mask, other=1.0))
    tl.store(row + B2, b2, mask)
    tl.store(row + A2, 1 - b2, mask)
    relative, cap = tl.load(row + RELATIVE, mask, other=0.0), tl.load(row + LR_CAP, mask, other=1.0)
    cap, factor = tl.where(relative == LR_CAPS, lr, cap), tl.where(relative == LR_CAPS, 1.0, lr)
    rho = at_most(1 / tl.sqrt(t), cap)
    rho = tl.where(tl.load(row + WARMUP, mask, other=0.0) != 0, at_most(rho, 1e-6 * t), rho)
    tl.store(row + RHO, tl.where(relative == ABSOLUTE, lr, factor * rho), mask)
    tl.store(row + LR_DECAY, tl.where(relative == ABSOLUTE, lr, factor * cap), mask)


@triton.jit
def coefficients_of(own, COMPUTE: tl.constexpr):
    b2, a2, eps_added, eps1 = tl.load(own + B2), tl.load(own + A2), tl.load(own + EPS_ADDED), tl.load(own + EPS)
    return b2.to(COMPUTE), a2.to(COMPUTE), eps_added.to(COMPUTE), eps1.to(COMPUTE)


@triton.jit
def second_moment(g, V, k):
    b2, a2, eps_added, _ = k
    return b2 * V + a2 * (g * g + eps_added)


@triton.jit
def update(g, V, k, CLAMP: tl.constexpr):
    _, _, _, eps1 = k
    return g / at_least(root(V), eps1) if CLAMP else g / root(V)


@triton.jit
def steps_of(coefficients, job, answers, layer, COMPUTE: tl.constexpr):
    """Load the factors of a layer's step."""
    to = answers + layer * ANSWERS
    scale, after, shrink = tl.load(to + SCALE), tl.load(to + AFTER), tl.load(to + SHRINK)
    b1 = tl.load(coefficients + job * COEFFICIENTS + B1)
    return b1.to(COMPUTE), scale.to(COMPUTE), after.to(COMPUTE), shrink.to(COMPUTE)


@triton.jit
def move(p_at, e_at, u, steps, mask, COMPUTE: tl.constexpr, MOMENTUM: tl.constexpr, FULL: tl.constexpr):
    """Write p, and e with MOMENTUM."""
    b1, scale, after, shrink = steps
    moved = scale * u
    if MOMENTUM:
        e = b1 * read(e_at, mask, COMPUTE, FULL, True) + moved
        write(e_at, e, mask, FULL, True)
        moved = after * e
    write(p_at, shrink * read(p_at, mask, COMPUTE, FULL, True) - moved, mask, FULL, True)


@triton.jit(do_not_specialize=VARYING)
def measure(
    step_params, coefficients, pointers, layers, chunks, clips, partials, sums_stride, skip, jobs,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr, COMPUTE: tl.constexpr,
    SCALES: tl.constexpr, CLAMP: tl.constexpr, LATE: tl.constexpr,
    READY: tl.constexpr, SKIPS: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute V, and Σp² and Σu² of each chunk."""
    layer, job, begin, n, place = chunk_of(layers, chunks, tl.program_id(0), CHUNK)
    p_at = array(pointers, job, begin, P, PARAM, ALIGNED)
    g_at = gradient(step_params, job, jobs, begin, GRAD, ALIGNED)
    at = p_at, g_at, array(pointers, job, begin, S1, STATE1, ALIGNED)
    wanted = wants(coefficients, job, tl.load(clips + layer), COMPUTE)
    k = coefficients_of(coefficients + job * COEFFICIENTS, COMPUTE)
    pp, uu = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    if goes(skip, SKIPS):
        full = n // BLOCK * BLOCK
        for i in range(0, full, BLOCK):
            pp_, uu_ = measure_at(at, wanted, k, i, n, COMPUTE, SCALES, CLAMP, LATE, READY, BLOCK, True)
            pp += pp_
            uu += uu_
        if full < n:
            pp_, uu_ = measure_at(at, wanted, k, full, n, COMPUTE, SCALES, CLAMP, LATE, READY, BLOCK, False)
            pp += pp_
            uu += uu_
    to = partials + place
    tl.store(to, tl.sum(pp, 0))
    tl.store(to + sums_stride, tl.sum(uu, 0))


@triton.jit
def measure_at(
    at, wanted, k, i, n, COMPUTE: tl.constexpr, SCALES: tl.constexpr, CLAMP: tl.constexpr,
    LATE: tl.constexpr, READY: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    e = i + tl.arange(0, BLOCK)
    mask = e < n
    p_at, g_at, V_at = at
    V_at += e
    g = ready(read(g_at + e, mask, COMPUTE, FULL), wanted, mask, READY)
    V = second_moment(g, read(V_at, mask, COMPUTE, FULL), k)
    if not LATE:
        write(V_at, V, mask, FULL)
    if not FULL:
        V = tl.where(mask, V, 1.0)  # avoid 0/0 past the end
    u = update(g, V, k, CLAMP)
    pp = tl.zeros((BLOCK,), tl.float64)
    if SCALES:
        p = read(p_at + e, mask, COMPUTE, FULL)
        pp = squared(p)
    return pp, squared(u)


@triton.jit(do_not_specialize=VARYING)
def answer(
    coefficients, layers, plane_of, planes, partials, sums_stride, tiled, tiles_stride, sums, answers, n, skip,
    FIRST_ROUND: tl.constexpr, LAST_ROUND: tl.constexpr, ANSWER: tl.constexpr, SKIPS: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Add up the sums of each layer, and make its answers. Where V is factored, Σu² is of the last round."""
    layer = tl.program_id(0)
    row, plane = layers + layer.to(tl.int64) * LAYER, tl.load(plane_of + layer)
    pp, uu = tl.load(sums + layer), tl.load(sums + n + layer)
    if plane < 0:
        if FIRST_ROUND:
            pp, uu = sum_of_layer(row, partials, LANES), sum_of_layer(row, partials + sums_stride, LANES)
    else:
        left, parts = tiled + tl.load(planes + plane * PLANE + TILES_FIRST), tl.load(planes + plane * PLANE + TILES)
        if FIRST_ROUND:
            pp = sum_of(left, parts.to(tl.int32), LANES)
        if LAST_ROUND:
            uu = sum_of(left + tiles_stride, parts.to(tl.int32), LANES)
    tl.store(sums + layer, pp)
    tl.store(sums + n + layer, uu)
    if ANSWER and goes(skip, SKIPS):  # a skipped step leaves the measurements of the step before
        own = coefficients + tl.load(row + JOB) * COEFFICIENTS
        answer_of(own, answers + layer * ANSWERS, tl.load(row + ENTRIES), pp, uu)


@triton.jit
def answer_of(own, to, entries, pp, uu):
    n = at_least(entries.to(tl.float64), 1.0)
    rms_p, rms, threshold = tl.sqrt(pp / n), tl.sqrt(uu / n), tl.load(own + THRESHOLD)
    clips = threshold != float("inf")
    clip = tl.where(clips, 1 / at_least(rms / tl.where(clips, threshold, 1.0), 1.0), 1.0)
    scale = tl.where(tl.load(own + SCALED) != 0, at_least(rms_p, tl.load(own + EPS2)), 1.0)
    alpha, inside = tl.load(own + RHO) * scale, tl.load(own + LR_INSIDE) != 0
    decay = tl.load(own + DECAY)
    by = tl.where(decay == BY_LR, tl.load(own + LR_DECAY), tl.where(decay == BY_STEP, alpha, 1.0))
    tl.store(to + OF_UPDATE, rms)
    tl.store(to + RATIO, scale * clip)
    tl.store(to + OF_WEIGHTS, rms_p)
    tl.store(to + SCALE, (1 - tl.load(own + B1)) * clip * tl.where(inside, alpha, 1.0))
    tl.store(to + AFTER, tl.where(inside, 1.0, alpha))
    tl.store(to + SHRINK, 1 - by * tl.load(own + LAM))


@triton.jit(do_not_specialize=VARYING)
def apply(
    step_params, coefficients, pointers, layers, chunks, clips, answers, skip, jobs,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr, COMPUTE: tl.constexpr,
    MOMENTUM: tl.constexpr, CLAMP: tl.constexpr, LATE: tl.constexpr,
    READY: tl.constexpr, SKIPS: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write p, e, and if LATE V, in reverse order, because caches may still hold the last chunks."""
    c = tl.num_programs(0) - 1 - tl.program_id(0)
    layer, job, begin, n, _ = chunk_of(layers, chunks, c, CHUNK)
    p_at = array(pointers, job, begin, P, PARAM, ALIGNED)
    g_at = gradient(step_params, job, jobs, begin, GRAD, ALIGNED)
    e_at = array(pointers, job, begin, S0, STATE0, ALIGNED)
    at = p_at, g_at, e_at, array(pointers, job, begin, S1, STATE1, ALIGNED)
    wanted, k = (
        wants(coefficients, job, tl.load(clips + layer), COMPUTE),
        coefficients_of(coefficients + job * COEFFICIENTS, COMPUTE),
    )
    steps = steps_of(coefficients, job, answers, layer, COMPUTE)
    if goes(skip, SKIPS):
        full = n // BLOCK * BLOCK
        for i in range(0, full, BLOCK):
            apply_at(at, wanted, k, steps, i, n, COMPUTE, MOMENTUM, CLAMP, LATE, READY, BLOCK, True)
        if full < n:
            apply_at(at, wanted, k, steps, full, n, COMPUTE, MOMENTUM, CLAMP, LATE, READY, BLOCK, False)
        count(step_params, coefficients, jobs, job, begin)


@triton.jit
def apply_at(
    at, wanted, k, steps, i, n, COMPUTE: tl.constexpr, MOMENTUM: tl.constexpr, CLAMP: tl.constexpr,
    LATE: tl.constexpr, READY: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    e = i + tl.arange(0, BLOCK)
    mask = e < n
    p_at, g_at, e_at, V_at = at
    V_at += e
    g = ready(read(g_at + e, mask, COMPUTE, FULL, True), wanted, mask, READY)
    V = read(V_at, mask, COMPUTE, FULL, True)
    if LATE:
        V = second_moment(g, V, k)
        write(V_at, V, mask, FULL, True)
    if not FULL:
        V = tl.where(mask, V, 1.0)  # avoid 0/0 past the end
    p_at += e
    move(p_at, e_at + e, update(g, V, k, CLAMP), steps, mask, COMPUTE, MOMENTUM, FULL)
