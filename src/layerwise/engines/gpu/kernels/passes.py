"""The passes of a printed program over the chunks of layers.

A program has `keep`, which makes the state that is final before the sums of a round; `terms`, what is added up in a
round; `answer`, which makes of the totals what arrays are computed with; and `apply`, the new weights and the rest of
the state. `apply` computes the last terms again, because a root and a quotient cost less than memory. Where a layer is
late, nothing is stored before `apply`, which then computes the kept state again: others complete the sums, or the terms
have to be of state that has not been rounded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.formats import (
    FIRST_LAYER,
    GROUP,
    PADS,
    PLANES,
    block_of,
    keep,
    recall,
    rows_at,
    storage_of,
    stored,
)
from layerwise.engines.gpu.kernels.parts import (
    array,
    at_least,
    chunk_of,
    count,
    fetch,
    goes,
    gradient,
    put,
    read,
    ready,
    sum_of,
    summed,
    update,
    wants,
)
from layerwise.engines.gpu.kernels.tables import (
    ANSWERED,
    ANSWERS,
    COLUMN_FACTORS,
    COLUMNS,
    ENTRIES,
    JOB,
    LAYER,
    OLD0,
    OWN,
    PLANE,
    PLANE_BASE,
    REPORTED,
    ROW_FACTORS,
    ROWS,
    S0,
    SPAN,
    SPAN_COUNT,
    SPAN_FIRST,
    SPAN_LAYER,
    VARYING,
    P,
)
from layerwise.engines.gpu.printed.adafactor import LEAST


@triton.jit(do_not_specialize=VARYING)
def square(
    step_params, coefficients, pointers, layers, chunks, clips, partials, skip, width,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr, STATE2: tl.constexpr,
    STATE3: tl.constexpr, COMPUTE: tl.constexpr, READY: tl.constexpr, SKIPS: tl.constexpr, FORMATS: tl.constexpr,
    ALIGNED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute Σg² of each chunk, with g ready but for the division by its norm."""
    _, job, begin, n, place = chunk_of(layers, chunks, tl.program_id(0), CHUNK)
    rows = rows_at(storage_of(pointers, job, FORMATS), begin, FORMATS)
    at = gradient(step_params, job, width, rows[0], GRAD, ALIGNED)
    wanted = wants(coefficients + job * width, tl.full((), 1.0, tl.float64), COMPUTE)
    gg = tl.zeros((BLOCK,), tl.float64)
    full = n // BLOCK * BLOCK
    for i in range(0, full, BLOCK):
        gg += square_at(at, rows, wanted, i, n, COMPUTE, FORMATS, BLOCK, PADS & FORMATS == 0)
    if full < n:
        gg += square_at(at, rows, wanted, full, n, COMPUTE, FORMATS, BLOCK, False)
    tl.store(partials + place, tl.sum(gg, 0))


@triton.jit
def square_at(
    at, rows, wanted, i, n,
    COMPUTE: tl.constexpr, FORMATS: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    e, _, mask, _ = block_of(rows, i, n, FORMATS, BLOCK)
    return summed(ready(read(at + e, mask, COMPUTE, FULL), wanted, True), mask, False, FULL)


@triton.jit
def operands_of(
    step_params, pointers, job, width, begin, PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr,
    STATE1: tl.constexpr, STATE2: tl.constexpr, STATE3: tl.constexpr, STATES: tl.constexpr, FORMATS: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """Return the starts of p, g and the states of a chunk, and its rows."""
    storage, group = storage_of(pointers, job, FORMATS), begin // GROUP
    rows = rows_at(storage, begin, FORMATS)
    begin = rows[0]
    p_at = array(pointers, job, begin, P, PARAM, ALIGNED)
    p_at = stored(p_at, storage, step_params, job, width, begin, group, 0, FORMATS, ALIGNED)
    g_at = gradient(step_params, job, width, begin, GRAD, ALIGNED)
    found = ()
    for i in tl.static_range(STATES):
        at = array(pointers, job, begin, S0 + i, (STATE0, STATE1, STATE2, STATE3)[i], ALIGNED)
        found += (stored(at, storage, step_params, job, width, begin, group, 1 + i, FORMATS, ALIGNED),)
    return p_at, g_at, found, rows


@triton.jit
def recall_states(
    at, block, STATES: tl.constexpr, FORMATS: tl.constexpr, COMPUTE: tl.constexpr, FULL: tl.constexpr,
    LAST: tl.constexpr,
):  # fmt: skip
    found = ()
    for i in tl.static_range(STATES):
        found += (recall(at[i], block, 1 + i, FORMATS, COMPUTE, FULL, LAST, 1.0),)
    return found


@triton.jit
def keep_states(
    at, block, new, FROM: tl.constexpr, STATES: tl.constexpr, WRITES: tl.constexpr, FORMATS: tl.constexpr,
    FULL: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Store the states whose bits are among WRITES. They begin at FROM among the new ones."""
    for i in tl.static_range(STATES):
        if WRITES >> i & 1:
            keep(at[i], new[FROM + i], block, 1 + i, FORMATS, FULL, LAST)


@triton.jit(do_not_specialize=VARYING)
def measure(
    step_params, coefficients, pointers, layers, chunks, clips, answers, partials, sums_stride, skip, width,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr, STATE2: tl.constexpr,
    STATE3: tl.constexpr, COMPUTE: tl.constexpr, VALUES: tl.constexpr, KEEP: tl.constexpr, TERMS: tl.constexpr,
    STATES: tl.constexpr, SUMS: tl.constexpr, PLAIN: tl.constexpr, KEEPS: tl.constexpr, WRITES: tl.constexpr,
    LAST: tl.constexpr, READY: tl.constexpr, SKIPS: tl.constexpr, FORMATS: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute a round's sums of each chunk, up to four, and before them the state that it KEEPS."""
    layer, job, begin, n, place = chunk_of(layers, chunks, tl.program_id(0), CHUNK)
    at = operands_of(step_params, pointers, job, width, begin, PARAM, GRAD, STATE0, STATE1, STATE2, STATE3, STATES,
                     FORMATS, ALIGNED)  # fmt: skip
    wanted = wants(coefficients + job * width, tl.load(clips + layer), COMPUTE)
    k = VALUES(coefficients + job * width + OWN, answers + layer * ANSWERS + ANSWERED, COMPUTE)
    sums = zeros(SUMS, BLOCK)
    if goes(skip, SKIPS):
        full = n // BLOCK * BLOCK
        for i in range(0, full, BLOCK):
            x = measure_at(at, wanted, k, i, n, COMPUTE, KEEP, TERMS, STATES, SUMS, PLAIN, KEEPS, WRITES, LAST, READY,
                           FORMATS, BLOCK, PADS & FORMATS == 0)  # fmt: skip
            sums = plus(sums, x, SUMS)
        if full < n:
            x = measure_at(at, wanted, k, full, n, COMPUTE, KEEP, TERMS, STATES, SUMS, PLAIN, KEEPS, WRITES, LAST,
                           READY, FORMATS, BLOCK, False)  # fmt: skip
            sums = plus(sums, x, SUMS)
    for i in tl.static_range(SUMS):
        tl.store(partials + i * sums_stride + place, tl.sum(sums[i], 0))


@triton.jit
def zeros(SUMS: tl.constexpr, BLOCK: tl.constexpr):
    found = ()
    for _ in tl.static_range(SUMS):
        found += (tl.zeros((BLOCK,), tl.float64),)
    return found


@triton.jit
def plus(x, y, SUMS: tl.constexpr):
    found = ()
    for i in tl.static_range(SUMS):
        found += (x[i] + y[i],)
    return found


@triton.jit
def measure_at(
    at, wanted, k, i, n, COMPUTE: tl.constexpr, KEEP: tl.constexpr, TERMS: tl.constexpr, STATES: tl.constexpr,
    SUMS: tl.constexpr, PLAIN: tl.constexpr, KEEPS: tl.constexpr, WRITES: tl.constexpr, LAST: tl.constexpr,
    READY: tl.constexpr, FORMATS: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Return the terms of a block as they are added up. Past the end all numbers are 1, so that nothing is 0/0."""
    p_at, g_at, s_at, rows = at
    block = block_of(rows, i, n, FORMATS, BLOCK)
    p = recall(p_at, block, 0, FORMATS, COMPUTE, FULL, False, 1.0)
    g = ready(read(g_at + block[0], block[2], COMPUTE, FULL, LAST, 1.0), wanted, READY)
    s = recall_states(s_at, block, STATES, FORMATS, COMPUTE, FULL, False)
    if KEEPS:
        s = KEEP(k, p, g, s)
        keep_states(s_at, block, s, 0, STATES, WRITES, FORMATS, FULL, False)
    x = TERMS(k, p, g, s)
    found = ()
    for j in tl.static_range(SUMS):
        found += (summed(x[j], block[2], PLAIN >> j & 1, FULL),)
    return found


@triton.jit(do_not_specialize=VARYING)
def apply(
    step_params, coefficients, pointers, layers, chunks, clips, answers, skip, width,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr, STATE2: tl.constexpr,
    STATE3: tl.constexpr, COMPUTE: tl.constexpr, VALUES: tl.constexpr, KEEP: tl.constexpr, TERMS: tl.constexpr,
    APPLY: tl.constexpr, STATES: tl.constexpr, MEASURED: tl.constexpr, KEEPS: tl.constexpr, FACTORED: tl.constexpr,
    CLAMP: tl.constexpr, WRITES: tl.constexpr, READY: tl.constexpr, SKIPS: tl.constexpr, FORMATS: tl.constexpr,
    ALIGNED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the weights and states, in reverse order, because caches may still hold the last chunks."""
    layer, job, begin, n, _ = chunk_of(layers, chunks, tl.num_programs(0) - 1 - tl.program_id(0), CHUNK)
    at = operands_of(step_params, pointers, job, width, begin, PARAM, GRAD, STATE0, STATE1, STATE2, STATE3, STATES,
                     FORMATS, ALIGNED)  # fmt: skip
    wanted = wants(coefficients + job * width, tl.load(clips + layer), COMPUTE)
    k = VALUES(coefficients + job * width + OWN, answers + layer * ANSWERS + ANSWERED, COMPUTE)
    plane = ()
    if FACTORED:
        plane = plane_of(storage_of(pointers, job, FORMATS), layer, at[3][0], coefficients + job * width, COMPUTE)
    if goes(skip, SKIPS):
        full = n // BLOCK * BLOCK
        for i in range(0, full, BLOCK):
            apply_at(at, plane, wanted, k, i, n, COMPUTE, KEEP, TERMS, APPLY, STATES, MEASURED, KEEPS, FACTORED, CLAMP,
                     WRITES, READY, FORMATS, BLOCK, PADS & FORMATS == 0)  # fmt: skip
        if full < n:
            apply_at(at, plane, wanted, k, full, n, COMPUTE, KEEP, TERMS, APPLY, STATES, MEASURED, KEEPS, FACTORED,
                     CLAMP, WRITES, READY, FORMATS, BLOCK, False)  # fmt: skip
        count(step_params, width, job, begin)


@triton.jit
def plane_of(storage, layer, begin, own, COMPUTE: tl.constexpr):
    """Return the factors of a layer whose V is factored, its sizes, and the place of `begin` in it."""
    row = (layer - tl.load(storage + FIRST_LAYER)) * PLANE
    plane = tl.load(storage + PLANES).to(tl.pointer_type(tl.int64)) + row
    rows, columns, begin = tl.load(plane + ROWS), tl.load(plane + COLUMNS), begin - tl.load(plane + PLANE_BASE)
    r, c = begin // columns, (begin % columns).to(tl.int32)
    of_rows = tl.load(plane + ROW_FACTORS).to(tl.pointer_type(COMPUTE)) + r
    of_columns = tl.load(plane + COLUMN_FACTORS).to(tl.pointer_type(COMPUTE)) + r // rows * columns
    least = tl.load(own + OWN + LEAST).to(COMPUTE)
    return of_rows, of_columns, (r % rows).to(tl.int32), c, rows.to(tl.int32), columns.to(tl.int32), least


@triton.jit
def update_of(plane, g, block, CLAMP: tl.constexpr):
    """Return Adafactor's u of a block."""
    of_rows, of_columns, r, c, rows, columns, least = plane
    e, _, mask, _ = block
    down = (c + e) // columns
    across = c + e - down * columns + (r + down) // rows * columns
    row, column = tl.load(of_rows + down, mask, other=1.0), tl.load(of_columns + across, mask, other=1.0)
    return update(g, row, column, least, CLAMP)


@triton.jit
def apply_at(
    at, plane, wanted, k, i, n, COMPUTE: tl.constexpr, KEEP: tl.constexpr, TERMS: tl.constexpr, APPLY: tl.constexpr,
    STATES: tl.constexpr, MEASURED: tl.constexpr, KEEPS: tl.constexpr, FACTORED: tl.constexpr, CLAMP: tl.constexpr,
    WRITES: tl.constexpr, READY: tl.constexpr, FORMATS: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    p_at, g_at, s_at, rows = at
    block = block_of(rows, i, n, FORMATS, BLOCK)
    p = recall(p_at, block, 0, FORMATS, COMPUTE, FULL, True, 1.0)
    g = ready(read(g_at + block[0], block[2], COMPUTE, FULL, True, 1.0), wanted, READY)
    s = recall_states(s_at, block, STATES, FORMATS, COMPUTE, FULL, True)
    x = ()
    if KEEPS:
        s = KEEP(k, p, g, s)
    if FACTORED:  # u stands in the place of V, of which nothing is made here, and of all terms
        u = update_of(plane, g, block, CLAMP)
        s, x = (u, s[1]), (u, u)
    elif MEASURED:
        x = TERMS(k, p, g, s)
    new = APPLY(k, p, g, s, x)
    keep(p_at, new[0], block, 0, FORMATS, FULL, True)
    keep_states(s_at, block, new, 1, STATES, WRITES, FORMATS, FULL, True)


@triton.jit(do_not_specialize=VARYING)
def answer(
    coefficients, layers, spans, partials, sums_stride, sums, answers, n, width, skip,
    FIRST_TOTAL: tl.constexpr, TOTALS: tl.constexpr, ADD: tl.constexpr, ANSWER: tl.constexpr, REMEMBER: tl.constexpr,
    STATES: tl.constexpr, ASKED: tl.constexpr, LAST: tl.constexpr, SKIPS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Add up the sums of a round, make the rule's answers of all TOTALS up to here, and report what is known.

    In the LAST round it stores the numbers of the layer's state, since nothing can stop the step then.
    """
    span = spans + tl.program_id(0) * SPAN
    layer, first, parts = tl.load(span + SPAN_LAYER), tl.load(span + SPAN_FIRST), tl.load(span + SPAN_COUNT)
    row, S = layers + layer * LAYER, ()
    for i in tl.static_range(TOTALS):
        if ADD and i >= FIRST_TOTAL:
            x = sum_of(partials + (i - FIRST_TOTAL) * sums_stride + first, parts.to(tl.int32), LANES)
            tl.store(sums + i * n + layer, x)
            S += (x,)
        else:
            S += (tl.load(sums + i * n + layer),)
    if goes(skip, SKIPS):  # a skipped step leaves the measurements of the step before
        k = coefficients + tl.load(row + JOB) * width + OWN
        entries, to = at_least(tl.load(row + ENTRIES).to(tl.float64), 1.0), answers + layer * ANSWERS
        old = ()
        for i in tl.static_range(STATES):
            kind = tl.load(row + OLD0 + 2 * i + 1)
            old += (fetch(tl.load(row + OLD0 + 2 * i), kind, 0, kind >= 0, 0.0),)
        if ASKED:
            ANSWER(k, S, entries, old, to + ANSWERED, to + REPORTED)
        if LAST and STATES > 0:
            new = REMEMBER(k, S, entries, old)
            for i in tl.static_range(STATES):
                kind = tl.load(row + OLD0 + 2 * i + 1)
                put(tl.load(row + OLD0 + 2 * i), kind, 0, new[i], kind >= 0)
