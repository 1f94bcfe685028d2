"""Row and column statistics: sums of g² in strips, added up, and R, C and the factors of u made of them.

Strips and factors are in the dtype of the arithmetic. A sum that has only one strip may be that strip; other sums are
in float64.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import formats, parts, passes, planes
from layerwise.engines.gpu.kernels import tables as col
from layerwise.engines.gpu.kernels.tables import VARYING
from layerwise.engines.gpu.printed.adafactor import averaged, averaged_mean, bounded


@triton.jit(do_not_specialize=VARYING)
def strips(step_params, pointers, layers, chunks, clips, partials, skip, width, C: tl.constexpr):
    """Compute each chunk's strips of the sums of g² by rows and by columns, and its Σp² if the rule SCALES by it.

    In the reverse order of the pass that follows, because caches may still hold the last chunks.
    """
    chunk = tl.num_programs(0) - 1 - tl.program_id(0)
    layer, job, begin, n, place, corner = passes.chunk_of(layers, chunks, chunk, C)
    _, _, rows, columns, _, r0, c0 = corner
    params = step_params + job * width
    p_at, g_at, _, _, _ = passes.operands_of(params, pointers + job * col.OPERANDS, begin, corner, C)
    wanted = parts.wants(parts.coefficients_of(params), tl.load(clips + layer), C)
    by_row = planes.numbers_of(corner, rows, c0 // C.SHAPE[2], col.BY_ROWS, col.STRIPS_FIRST, C)
    by_column = planes.numbers_of(corner, columns, r0 // C.CHUNK, col.BY_COLUMNS, col.STRIPS_FIRST, C)
    pp, of_columns, goes_on = tl.zeros(C.SHAPE, tl.float64), tl.zeros(C.SHAPE, C.COMPUTE), parts.goes(skip, C)
    for i in range(0, n, C.BLOCK):
        e, j, mask, there = planes.block_of(corner, i, C)
        mask = mask & goes_on
        g = bounded(parts.ready(parts.read(g_at + e, mask, C.COMPUTE, False), wanted, C.READY))
        gg = tl.where(mask, g * g, 0.0)
        r = r0 + i + tl.arange(0, C.SHAPE[1])
        tl.store(by_row + r[None, :], tl.sum(gg, 2), planes.existing(corner, r, rows, C))
        of_columns += gg
        if C.SCALES:
            pp += parts.summed(formats.recall(p_at, (e, j, mask, there), 0, False, False, 0.0, C), mask, False, True)
    c = c0 + tl.arange(0, C.SHAPE[2])
    tl.store(by_column + c[None, :], tl.sum(of_columns, 1), planes.existing(corner, c, columns, C))
    if C.SCALES:
        tl.store(partials + place, tl.sum(pp))


@triton.jit
def fold(sides, programs, C: tl.constexpr):
    """Add up the strips of sums."""
    row, part = parts.part_of(programs, tl.program_id(0))
    side, i = sides + row.to(tl.int64) * col.SIDE, part.to(tl.int64) * C.LENGTH + tl.arange(0, C.LENGTH)
    n, count = tl.load(side + col.SIDE_MATRICES) * tl.load(side + col.SIDE_ENTRIES), tl.load(side + col.STRIPS)
    address, kind = tl.load(side + col.STRIPS_FIRST), tl.load(side + col.STRIPS_AS)
    total = tl.zeros((C.DEPTH, C.LENGTH), tl.float64)
    for first in range(0, count.to(tl.int32), C.DEPTH):
        strip = first + tl.arange(0, C.DEPTH)
        mask = (strip < count)[:, None] & (i < n)[None, :]
        total += parts.fetch(address, kind, strip[:, None] * n + i[None, :], mask, 0.0, False)
    tl.store(tl.load(side + col.SUMS).to(tl.pointer_type(tl.float64)) + i, tl.sum(total, 0), i < n)


@triton.jit
def total(sides, programs, C: tl.constexpr):
    """Compute, for each matrix, the sums of its row sums and of the old R."""
    row, part = parts.part_of(programs, tl.program_id(0))
    side, m = sides + row.to(tl.int64) * col.SIDE, part.to(tl.int64) * C.SHAPE[0] + tl.arange(0, C.SHAPE[0])
    matrices, entries = tl.load(side + col.SIDE_MATRICES), tl.load(side + col.SIDE_ENTRIES)
    sums, sums_as = tl.load(side + col.SUMS), tl.load(side + col.SUMS_AS)
    stored, stored_as = tl.load(side + col.STORED), tl.load(side + col.STORED_AS)
    G, R = tl.zeros(C.SHAPE, tl.float64), tl.zeros(C.SHAPE, tl.float64)
    for first in range(0, entries.to(tl.int32), C.SHAPE[1]):
        i = first + tl.arange(0, C.SHAPE[1])
        at, mask = m[:, None] * entries + i[None, :], (m < matrices)[:, None] & (i < entries)[None, :]
        G += parts.fetch(sums, sums_as, at, mask, 0.0, False)
        R += parts.fetch(stored, stored_as, at, mask, 0.0)
    to = tl.load(side + col.TOTALS).to(tl.pointer_type(tl.float64)) + m
    tl.store(to, tl.sum(G, 1), m < matrices)
    tl.store(to + matrices, tl.sum(R, 1), m < matrices)


@triton.jit(do_not_specialize=VARYING)
def renew(sides, programs, step_params, skip, width, C: tl.constexpr):
    """Compute R and C of this step, and store them, or make the factors of u, or both."""
    row, part = parts.part_of(programs, tl.program_id(0))
    side, at = sides + row.to(tl.int64) * col.SIDE, part.to(tl.int64) * C.LENGTH + tl.arange(0, C.LENGTH)
    matrices, entries = tl.load(side + col.SIDE_MATRICES), tl.load(side + col.SIDE_ENTRIES)
    mask = at < matrices * entries
    own = parts.coefficients_of(step_params + tl.load(side + col.SIDE_JOB) * width) + col.OWN
    sums = parts.fetch(tl.load(side + col.SUMS), tl.load(side + col.SUMS_AS), at, mask, 1.0, False)
    summed = tl.load(side + col.SUMMED).to(tl.float64)
    address, kind = tl.load(side + col.STORED), tl.load(side + col.STORED_AS)
    x = averaged(own, parts.fetch(address, kind, at, mask, 1.0), sums / summed)
    if C.MAKE_FACTORS:
        # mean(R) follows the recurrence that R obeys, so it is known as soon as the sums are.
        rows, of_rows = tl.load(side + col.FULL_ROWS).to(tl.float64), row % col.BOTH == col.BY_ROWS
        totals = tl.load(side + col.TOTALS).to(tl.pointer_type(tl.float64)) + at // entries
        G_mean = tl.load(totals, mask & of_rows, other=1.0) / (rows * summed)
        R_mean = tl.load(totals + matrices, mask & of_rows, other=1.0) / rows
        R_mean = averaged_mean(own, R_mean, G_mean)
        factor = tl.sqrt(tl.where(mask, x / tl.where(of_rows, R_mean, 1.0), 1.0))
        parts.put(tl.load(side + col.FACTORS), tl.load(side + col.STRIPS_AS), at, factor, mask, False)
    if C.STORE:
        parts.put(address, kind, at, x, mask & parts.goes(skip, C))
