"""The passes of a printed program over the chunks of layers.

A program has four functions. `KEEP` computes the state that is final before the sums of a round, `TERMS` the terms of
the sums, `ANSWER` the numbers that follow from the totals, and `APPLY` the new weights and the rest of the state.
`apply` computes the last terms again, because a root and a quotient take less time than memory. A layer is late if
nothing may be stored before `apply`, because other ranks complete the sums, or because terms need the state before it
is rounded. Its kept state is then computed again in `apply`.

`C` has the constants that a kernel is compiled for (launch.py): dtypes, forms, sizes, functions, and the purpose of the
launch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import common, formats, tiles
from layerwise.engines.gpu.kernels import tables as col
from layerwise.engines.gpu.kernels.tables import VARYING


@triton.jit
def chunk_of(layers, chunks, c, C: tl.constexpr):
    """Return chunk c's layer, job, first element in the tensor, length, place of its sums, and corner, if it has one.

    The length of a chunk of tiles counts rows.
    """
    layer, part = common.row_and_part(chunks, c)
    row, corner = layers + layer.to(tl.int64) * col.LAYER, ()
    if C.LINES:
        start, n, corner = tiles.tile_corner(row, part, C)
    else:
        start = part.to(tl.int64) * C.CHUNK
        n = tl.minimum(tl.load(row + col.COUNT) - start, C.CHUNK).to(tl.int32)
    return layer, tl.load(row + col.JOB), tl.load(row + col.BASE) + start, n, tl.load(row + col.FIRST) + part, corner


@triton.jit
def operands_of(params, pointers, begin, corner, C: tl.constexpr):
    """Return the addresses of a chunk's p, g and states, its corner and its lines; `pointers` is the job's row."""
    storage = formats.storage_of(pointers, C)
    lines = tiles.locate_row_column_results(corner, C) if C.LINES else ()
    p_at = common.element(tl.load(pointers + col.P), begin, C.PARAM, C.ALIGNED)
    p_at = formats.formatted_at(p_at, storage, params, begin, 0, C)
    found = ()
    for i in tl.static_range(C.STATES):
        at = common.element(tl.load(pointers + col.S0 + i), begin, C.STATE_DTYPES[i], C.ALIGNED)
        found += (formats.formatted_at(at, storage, params, begin, 1 + i, C),)
    return p_at, common.gradient(params, begin, C), found, corner, lines


@triton.jit
def values_of(params, answers, clips, layer, C: tl.constexpr):
    """Return the numbers that make a layer's gradients ready, and those that its arrays are computed with."""
    k = common.coefficients_of(params)
    answered = answers + layer * col.ANSWERS + col.ANSWERED
    return common.load_gradient_factors(k, tl.load(clips + layer), C), C.VALUES(k + col.OWN, answered, C.COMPUTE)


@triton.jit
def load_block(at, wanted, i, n, FULL: tl.constexpr, LAST: tl.constexpr, LAST_OF_G: tl.constexpr, C: tl.constexpr):
    """Return a block, and its p, g and states. Beyond the end all numbers are 1, so that no division is 0/0.

    After the states come the numbers made of the block's rows and columns, if the program has these.
    """
    p_at, g_at, s_at, corner, lines = at
    block = tiles.block_of(corner, i, C) if C.LINES else formats.block_of(i, n, C)
    p = formats.load_formatted(p_at, block, 0, FULL, LAST, 1.0, C)
    g = common.ready(common.read(g_at + block[0], block[2], C.COMPUTE, FULL, LAST_OF_G, 1.0), wanted, C.READY)
    found = ()
    for j in tl.static_range(C.STATES):
        found += (formats.load_formatted(s_at[j], block, 1 + j, FULL, LAST, 1.0, C),)
    if C.LINES:
        found += tiles.made(lines, corner, i, C)
    return block, p, g, found


@triton.jit
def keep_states(at, block, new, FROM: tl.constexpr, FULL: tl.constexpr, LAST: tl.constexpr, C: tl.constexpr):
    """Store the states whose bits WRITES has. The new ones begin at index FROM."""
    for i in tl.static_range(C.STATES):
        if C.WRITES >> i & 1:
            formats.store_formatted(at[i], new[FROM + i], block, 1 + i, FULL, LAST, C)


@triton.jit(do_not_specialize=VARYING)
def measure(step_params, pointers, layers, chunks, clips, answers, partials, sums_stride, skip, width, C: tl.constexpr):
    """Compute each chunk's partial sums of a round, up to four, and before them the state that the round KEEPS."""
    layer, job, begin, n, place, corner = chunk_of(layers, chunks, tl.program_id(0), C)
    params = step_params + job * width
    at = operands_of(params, pointers + job * col.OPERANDS, begin, corner, C)
    wanted, k = values_of(params, answers, clips, layer, C)
    sums = ()
    for _ in tl.static_range(C.SUMS):
        sums += (tl.zeros(C.SHAPE, tl.float64),)
    if common.is_step_taken(skip, C):
        full = n // C.BLOCK * C.BLOCK if C.FULL else n
        for i in range(0, full, C.BLOCK):
            sums = measure_at(at, wanted, k, i, n, sums, C.FULL, C)
        if C.FULL and full < n:
            sums = measure_at(at, wanted, k, full, n, sums, False, C)
    for i in tl.static_range(C.SUMS):
        tl.store(partials + i * sums_stride + place, tl.sum(sums[i]))


@triton.jit
def measure_at(at, wanted, k, i, n, sums, FULL: tl.constexpr, C: tl.constexpr):
    """Add the terms of a block to the sums."""
    block, p, g, s = load_block(at, wanted, i, n, FULL, False, C.LAST, C)
    if C.KEEPS:
        s = C.KEEP(k, p, g, s)
        keep_states(at[2], block, s, 0, FULL, False, C)
    x = C.TERMS(k, p, g, s)
    found = ()
    for j in tl.static_range(C.SUMS):
        found += (sums[j] + common.square_unless_plain(x[j], block[2], C.PLAIN >> j & 1, FULL),)
    return found


@triton.jit(do_not_specialize=VARYING)
def apply(step_params, pointers, layers, chunks, clips, answers, skip, width, C: tl.constexpr):
    """Write the weights and states. Chunks are taken in reverse, because the last ones may still be in caches."""
    layer, job, begin, n, _, corner = chunk_of(layers, chunks, tl.num_programs(0) - 1 - tl.program_id(0), C)
    params = step_params + job * width
    at = operands_of(params, pointers + job * col.OPERANDS, begin, corner, C)
    wanted, k = values_of(params, answers, clips, layer, C)
    if common.is_step_taken(skip, C):
        full = n // C.BLOCK * C.BLOCK if C.FULL else n
        for i in range(0, full, C.BLOCK):
            apply_at(at, wanted, k, i, n, C.FULL, C)
        if C.FULL and full < n:
            apply_at(at, wanted, k, full, n, False, C)
        common.count_step(params, begin)


@triton.jit
def apply_at(at, wanted, k, i, n, FULL: tl.constexpr, C: tl.constexpr):
    block, p, g, s = load_block(at, wanted, i, n, FULL, True, True, C)
    x = ()
    if C.KEEPS:
        s = C.KEEP(k, p, g, s)
    if C.MEASURED:
        x = C.TERMS(k, p, g, s)
    new = C.APPLY(k, p, g, s, x)
    # In this order no variant of the kernel spills registers.
    keep_states(at[2], block, new, 1, FULL, True, C)
    formats.store_formatted(at[0], new[0], block, 0, FULL, True, C)


@triton.jit(do_not_specialize=VARYING)
def answer(step_params, layers, spans, partials, sums_stride, sums, answers, n, skip, width, C: tl.constexpr):
    """Add up the sums of a round, compute the rule's answers from all TOTALS so far, and report what is known.

    In the LAST round it also stores the state that has one number for each layer: nothing can stop the step any more.
    """
    layer = tl.load(spans + tl.program_id(0))
    row, S = layers + layer * col.LAYER, ()
    first, chunks = tl.load(row + col.FIRST), tl.load(row + col.CHUNKS).to(tl.int32)
    for i in tl.static_range(C.TOTALS):
        if C.ADD and i >= C.FIRST_TOTAL:
            x = common.sum_of(partials + (i - C.FIRST_TOTAL) * sums_stride + first, chunks, C)
            tl.store(sums + i * n + layer, x)
            S += (x,)
        else:
            S += (tl.load(sums + i * n + layer),)
    if common.is_step_taken(skip, C):  # a skipped step leaves the measurements of the step before
        k = common.coefficients_of(step_params + tl.load(row + col.JOB) * width) + col.OWN
        entries = common.at_least(tl.load(row + col.ENTRIES).to(tl.float64), 1.0)
        to, old = answers + layer * col.ANSWERS, ()
        for i in tl.static_range(C.STATES):
            kind = tl.load(row + col.OLD0 + 2 * i + 1)
            old += (common.load_any_dtype(tl.load(row + col.OLD0 + 2 * i), kind, 0, kind >= 0, 0.0),)
        if C.ASKED:
            C.ANSWER(k, S, entries, old, to + col.ANSWERED, to + col.REPORTED)
        if C.LAST and C.STATES > 0:
            new = C.REMEMBER(k, S, entries, old)
            for i in tl.static_range(C.STATES):
                kind = tl.load(row + col.OLD0 + 2 * i + 1)
                common.store_any_dtype(tl.load(row + col.OLD0 + 2 * i), kind, 0, new[i], kind >= 0)
