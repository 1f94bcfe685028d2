"""Sums by rows and by columns, and what a program makes of them: state, and numbers that elements are computed with.

Each chunk writes a strip of partial sums, and the strips are then added up. Strips and the numbers made of them have
the dtype of the arithmetic. A sum with only one strip may be that strip; other sums are float64.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import common, formats, passes, tiles
from layerwise.engines.gpu.kernels import tables as col
from layerwise.engines.gpu.kernels.tables import VARYING


@triton.jit(do_not_specialize=VARYING)
def strips(step_params, pointers, layers, chunks, clips, answers, partials, skip, width, C: tl.constexpr):
    """Compute each chunk's strips of the sums by rows and by columns, and the other SUMS of the first round.

    Chunks are taken in the reverse order of the next pass, which finds the last ones still in caches.
    """
    chunk = tl.num_programs(0) - 1 - tl.program_id(0)
    layer, job, begin, n, place, corner = passes.chunk_of(layers, chunks, chunk, C)
    _, _, rows, columns, _, r0, c0 = corner
    params = step_params + job * width
    p_at, g_at, _, _, _ = passes.operands_of(params, pointers + job * col.OPERANDS, begin, corner, C)
    wanted, k = passes.values_of(params, answers, clips, layer, C)
    by_row = tiles.line_addresses(corner, rows, c0 // C.SHAPE[2], col.BY_ROWS, col.STRIPS_FIRST, C)
    by_column = tiles.line_addresses(corner, columns, r0 // C.CHUNK, col.BY_COLUMNS, col.STRIPS_FIRST, C)
    other, of_columns, goes_on = (
        tl.zeros(C.SHAPE, tl.float64),
        tl.zeros(C.SHAPE, C.COMPUTE),
        common.is_step_taken(skip, C),
    )
    for i in range(0, n, C.BLOCK):
        e, j, mask, there = tiles.block_of(corner, i, C)
        mask = mask & goes_on
        g = common.ready(common.read(g_at + e, mask, C.COMPUTE, False), wanted, C.READY)
        p = formats.load_formatted(p_at, (e, j, mask, there), 0, False, False, 0.0, C) if C.SUMS else 0.0
        x = C.TERMS(k, p, g, ())
        r = r0 + i + tl.arange(0, C.SHAPE[1])
        tl.store(by_row + r[None, :], tl.sum(tl.where(mask, x[0], 0.0), 2), tiles.existing(corner, r, rows, C))
        of_columns += tl.where(mask, x[1], 0.0)
        if C.SUMS:
            other += common.square_unless_plain(x[2], mask, C.PLAIN, False)
    c = c0 + tl.arange(0, C.SHAPE[2])
    tl.store(by_column + c[None, :], tl.sum(of_columns, 1), tiles.existing(corner, c, columns, C))
    if C.SUMS:
        tl.store(partials + place, tl.sum(other))


@triton.jit
def fold(sides, programs, C: tl.constexpr):
    """Add up the strips of sums."""
    row, part = common.row_and_part(programs, tl.program_id(0))
    side, i = sides + row.to(tl.int64) * col.SIDE, part.to(tl.int64) * C.LENGTH + tl.arange(0, C.LENGTH)
    n, count = tl.load(side + col.SIDE_MATRICES) * tl.load(side + col.SIDE_ENTRIES), tl.load(side + col.STRIPS)
    address, kind = tl.load(side + col.STRIPS_FIRST), tl.load(side + col.STRIPS_AS)
    total = tl.zeros((C.DEPTH, C.LENGTH), tl.float64)
    for first in range(0, count.to(tl.int32), C.DEPTH):
        strip = first + tl.arange(0, C.DEPTH)
        mask = (strip < count)[:, None] & (i < n)[None, :]
        total += common.load_any_dtype(address, kind, strip[:, None] * n + i[None, :], mask, 0.0, False)
    tl.store(tl.load(side + col.SUMS).to(tl.pointer_type(tl.float64)) + i, tl.sum(total, 0), i < n)


@triton.jit
def total(sides, programs, C: tl.constexpr):
    """Sum, over the rows of each matrix, the row sums and the rows' state."""
    row, part = common.row_and_part(programs, tl.program_id(0))
    side, m = sides + row.to(tl.int64) * col.SIDE, part.to(tl.int64) * C.SHAPE[0] + tl.arange(0, C.SHAPE[0])
    matrices, entries = tl.load(side + col.SIDE_MATRICES), tl.load(side + col.SIDE_ENTRIES)
    sums, sums_as = tl.load(side + col.SUMS), tl.load(side + col.SUMS_AS)
    stored, stored_as = tl.load(side + col.STORED), tl.load(side + col.STORED_AS)
    G, R = tl.zeros(C.SHAPE, tl.float64), tl.zeros(C.SHAPE, tl.float64)
    for first in range(0, entries.to(tl.int32), C.SHAPE[1]):
        i = first + tl.arange(0, C.SHAPE[1])
        at, mask = m[:, None] * entries + i[None, :], (m < matrices)[:, None] & (i < entries)[None, :]
        G += common.load_any_dtype(sums, sums_as, at, mask, 0.0, False)
        R += common.load_any_dtype(stored, stored_as, at, mask, 0.0)
    to = tl.load(side + col.TOTALS).to(tl.pointer_type(tl.float64)) + m
    tl.store(to, tl.sum(G, 1), m < matrices)
    tl.store(to + matrices, tl.sum(R, 1), m < matrices)


@triton.jit(do_not_specialize=VARYING)
def renew(sides, programs, step_params, skip, width, C: tl.constexpr):
    """Compute the new state of rows and columns, and store it, or the numbers for elements, or both."""
    row, part = common.row_and_part(programs, tl.program_id(0))
    side, at = sides + row.to(tl.int64) * col.SIDE, part.to(tl.int64) * C.LENGTH + tl.arange(0, C.LENGTH)
    matrices, entries = tl.load(side + col.SIDE_MATRICES), tl.load(side + col.SIDE_ENTRIES)
    mask = at < matrices * entries
    own = common.coefficients_of(step_params + tl.load(side + col.SIDE_JOB) * width) + col.OWN
    sums = common.load_any_dtype(tl.load(side + col.SUMS), tl.load(side + col.SUMS_AS), at, mask, 1.0, False)
    summed, elements = tl.load(side + col.SUMMED).to(tl.float64), tl.load(side + col.OF_MATRIX).to(tl.float64)
    address, kind = tl.load(side + col.STORED), tl.load(side + col.STORED_AS)
    old, mean = common.load_any_dtype(address, kind, at, mask, 1.0), sums / summed
    totals = tl.load(side + col.TOTALS).to(tl.pointer_type(tl.float64)) + at // entries
    of_matrix = tl.load(totals, mask, other=1.0) / elements
    of_rows = tl.load(totals + matrices, mask, other=1.0) / tl.load(side + col.FULL_ROWS).to(tl.float64)
    if row % col.BOTH == col.BY_ROWS:
        new, made = C.ROW(own, old, mean, of_matrix, of_rows)
    else:
        new, made = C.COLUMN(own, old, mean, of_matrix, of_rows)
    if C.MAKE:
        common.store_any_dtype(tl.load(side + col.MADE), tl.load(side + col.STRIPS_AS), at, made, mask, False)
    if C.STORE:
        common.store_any_dtype(address, kind, at, new, mask & common.is_step_taken(skip, C))
