"""Adafactor where V is factored (rules/adafactor.py), cut where the rule yields.

    measure: Σ(g²) by rows and by columns, Σp²             → fold, total (statistics.py)
    renew:   R ← b2·R + a2·(mean + eps1), C likewise       → 1/√(R/mean(R)), 1/√C; their roots where eps1 clamps
    squares: Σu²,  u = g·row·column                        → the program's answers
    apply:   the program's, with u in the place of the term that it has for it

A layer is a stack of matrices in one stretch of memory. A program takes a tile of so many matrices, rows and columns,
and then the tiles below it. Its partial sum along a row is one of several strips of that row's sum, which are added up
afterwards, always in the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import formats, parts
from layerwise.engines.gpu.kernels import tables as col
from layerwise.engines.gpu.kernels.tables import VARYING
from layerwise.engines.gpu.printed.adafactor import LEAST

# ---- where things lie


@triton.jit
def tile_of(planes, tiles, c, C: tl.constexpr):
    """Return the plane of tile c, its sizes, the numbers of the tile and of its strips, its matrices and its columns.

    With a VECTOR, the compiler recognizes of which numbers it is a divisor.
    """
    row, number = parts.part_of(tiles, c)
    plane = planes + row.to(tl.int64) * col.PLANE
    matrices = tl.load(plane + col.MATRICES).to(tl.int32)
    if C.ROWS * C.COLUMNS == 1:
        matrices = matrices // C.VECTOR * C.VECTOR
        rows, columns = tl.full((), 1, tl.int32), tl.full((), 1, tl.int32)
    else:
        rows = tl.load(plane + col.ROWS).to(tl.int32)
        columns = tl.load(plane + col.COLUMNS).to(tl.int32) // C.VECTOR * C.VECTOR
    down, across = tl.maximum(tl.cdiv(rows, C.ROWS * C.DEPTH), 1), tl.maximum(tl.cdiv(columns, C.COLUMNS), 1)
    over, under = number % across, number // across % down
    m = number // across // down * C.MATRICES + tl.arange(0, C.MATRICES)
    return plane, (matrices, rows, columns), number, over, under, m, over * C.COLUMNS + tl.arange(0, C.COLUMNS)


@triton.jit
def corner(plane, address, m, c, sizes, DTYPE: tl.constexpr, C: tl.constexpr):
    """Return the address of the first row of these matrices and columns in this operand."""
    _, rows, columns = sizes
    at = parts.element(address, tl.load(plane + col.PLANE_BASE), DTYPE, C.VECTOR > 1)
    return at + (m.to(tl.int64) * rows * columns)[:, None, None] + c[None, None, :]


@triton.jit
def operand(params, pointers, plane, m, c, sizes, COLUMN: tl.constexpr, WHICH: tl.constexpr, DTYPE: tl.constexpr,
            C: tl.constexpr):  # fmt: skip
    """Return an array like `corner`, or in its format from the plane's first element on."""
    address, begin = tl.load(pointers + COLUMN), tl.load(plane + col.PLANE_BASE)
    ALIGNED: tl.constexpr = C.VECTOR > 1
    at = parts.element(address, begin, DTYPE, ALIGNED) if C.FORMATS else corner(plane, address, m, c, sizes, DTYPE, C)
    storage = formats.storage_of(pointers, C)
    return formats.stored(at, storage, params, begin, begin // formats.GROUP, WHICH, ALIGNED, C)


@triton.jit
def tile_at(m, r, c, sizes, mask, C: tl.constexpr):
    """Return the offsets of a tile's elements and groups from the operands' start, and the mask of existing ones."""
    at = rows_of(r, sizes)
    j, there = at, mask
    if C.FORMATS:
        _, rows, columns = sizes
        at = (m.to(tl.int64) * rows * columns)[:, None, None] + at + c[None, None, :]
    if formats.CODES << 10 & C.FORMATS:
        j = tl.min(tl.reshape(at, (at.numel // formats.GROUP, formats.GROUP)), 1) // formats.GROUP
        there = tl.max(tl.reshape(mask.to(tl.int32), (at.numel // formats.GROUP, formats.GROUP)), 1) > 0
    return at, j, mask, there


@triton.jit
def rows_of(r, sizes):
    """Return the offsets of these rows."""
    _, _, columns = sizes
    return (r.to(tl.int64) * columns)[None, :, None]


@triton.jit
def factors_of(plane, m, i, n, mask, WHICH: tl.constexpr, C: tl.constexpr):
    """Load the factors of rows, or of columns, of these matrices, which stand where their strips were."""
    at = tl.load(plane + WHICH).to(tl.pointer_type(C.COMPUTE))
    return tl.load(at + m.to(tl.int64)[:, None] * n + i[None, :], mask, other=1.0)


@triton.jit
def job_of(step_params, pointers, plane, clips, width, C: tl.constexpr):
    """Return the step parameters and the pointers of a plane's job, and what its gradients are made ready with."""
    job, layer = tl.load(plane + col.PLANE_JOB), tl.load(plane + col.PLANE_LAYER)
    params = step_params + job * width
    wanted = parts.wants(parts.coefficients_of(params), tl.load(clips + layer), C)
    return params, pointers + job * col.OPERANDS, layer, wanted


# ---- tiles


@triton.jit(do_not_specialize=VARYING)
def measure(step_params, pointers, planes, tiles, clips, tiled, skip, width, C: tl.constexpr):
    """Compute each tile's strips of the sums of g² by rows and by columns, and its Σp²."""
    plane, sizes, number, over, under, m, c = tile_of(planes, tiles, tl.program_id(0), C)
    matrices, rows, columns = sizes
    params, pointers, _, wanted = job_of(step_params, pointers, plane, clips, width, C)
    p_at = operand(params, pointers, plane, m, c, sizes, col.P, 0, C.PARAM, C)
    g_at = corner(plane, tl.load(params + col.GRADIENT), m, c, sizes, C.GRAD, C)
    strip = tl.load(plane + col.ROW_STRIPS).to(tl.pointer_type(C.COMPUTE))
    of_rows = strip + (over * matrices.to(tl.int64) + m) * rows
    strip = tl.load(plane + col.COLUMN_STRIPS).to(tl.pointer_type(C.COMPUTE))
    of_columns = strip + (under * matrices.to(tl.int64) + m) * columns
    in_m, in_c, goes_on = m < matrices, c < columns, parts.goes(skip, C)
    pp = tl.zeros((C.MATRICES, C.ROWS, C.COLUMNS), tl.float64)
    by_column = tl.zeros((C.MATRICES, C.ROWS, C.COLUMNS), C.COMPUTE)
    first = under * C.ROWS * C.DEPTH
    for i in range(first, tl.minimum(first + C.ROWS * C.DEPTH, rows), C.ROWS):
        r = i + tl.arange(0, C.ROWS)
        in_rows = in_m[:, None] & (r < rows)[None, :]
        mask = in_rows[:, :, None] & in_c[None, None, :] & goes_on
        g = parts.ready(parts.read(g_at + rows_of(r, sizes), mask, C.COMPUTE, False), wanted, C.READY)
        gg = tl.where(mask, g * g, 0.0)
        tl.store(of_rows[:, None] + r[None, :], tl.sum(gg, 2), in_rows)
        by_column += gg
        if C.SCALES:
            p = formats.recall(p_at, tile_at(m, r, c, sizes, mask, C), 0, False, False, 0.0, C)
            pp += parts.summed(p, mask, False, True)
    tl.store(of_columns[:, None] + c[None, :], tl.sum(by_column, 1), in_m[:, None] & in_c[None, :])
    if C.SCALES:
        tl.store(tiled + tl.load(plane + col.TILES_FIRST) + number, tl.sum(pp))


@triton.jit(do_not_specialize=VARYING)
def squares(step_params, pointers, planes, tiles, clips, tiled, skip, width, C: tl.constexpr):
    """Compute Σu² of each tile, in reverse order, because caches may still hold the last tiles."""
    plane, sizes, number, _, under, m, c = tile_of(planes, tiles, tl.num_programs(0) - 1 - tl.program_id(0), C)
    matrices, rows, columns = sizes
    params, _, _, wanted = job_of(step_params, pointers, plane, clips, width, C)
    least = tl.load(parts.coefficients_of(params) + col.OWN + LEAST).to(C.COMPUTE)
    g_at = corner(plane, tl.load(params + col.GRADIENT), m, c, sizes, C.GRAD, C)
    in_m, in_c, goes_on = m < matrices, c < columns, parts.goes(skip, C)
    column = factors_of(plane, m, c, columns, in_m[:, None] & in_c[None, :], col.COLUMN_STRIPS, C)[:, None, :]
    uu = tl.zeros((C.MATRICES, C.ROWS, C.COLUMNS), tl.float64)
    first = under * C.ROWS * C.DEPTH
    for i in range(first, tl.minimum(first + C.ROWS * C.DEPTH, rows), C.ROWS):
        r = i + tl.arange(0, C.ROWS)
        in_rows = in_m[:, None] & (r < rows)[None, :]
        mask = in_rows[:, :, None] & in_c[None, None, :] & goes_on
        g = parts.ready(parts.read(g_at + rows_of(r, sizes), mask, C.COMPUTE, False), wanted, C.READY)
        row = factors_of(plane, m, r, rows, in_rows, col.ROW_STRIPS, C)[:, :, None]
        uu += parts.summed(parts.update(g, row, column, least, C), mask, False, False)
    tl.store(tiled + tl.load(plane + col.TILES_FIRST) + number, tl.sum(uu))


@triton.jit(do_not_specialize=VARYING)
def apply(step_params, pointers, planes, tiles, clips, answers, skip, width, C: tl.constexpr):
    """Write p and e."""
    plane, sizes, number, _, under, m, c = tile_of(planes, tiles, tl.program_id(0), C)
    matrices, rows, columns = sizes
    params, pointers, layer, wanted = job_of(step_params, pointers, plane, clips, width, C)
    own = parts.coefficients_of(params) + col.OWN
    least = tl.load(own + LEAST).to(C.COMPUTE)
    k = C.VALUES(own, answers + layer * col.ANSWERS + col.ANSWERED, C.COMPUTE)
    p_at = operand(params, pointers, plane, m, c, sizes, col.P, 0, C.PARAM, C)
    g_at = corner(plane, tl.load(params + col.GRADIENT), m, c, sizes, C.GRAD, C)
    e_at = p_at
    if C.STATES > 1:
        e_at = operand(params, pointers, plane, m, c, sizes, col.S1, 2, C.STATE_DTYPES[1], C)
    in_m, in_c = m < matrices, c < columns
    column = factors_of(plane, m, c, columns, in_m[:, None] & in_c[None, :], col.COLUMN_STRIPS, C)[:, None, :]
    first = under * C.ROWS * C.DEPTH
    if parts.goes(skip, C):
        for i in range(first, tl.minimum(first + C.ROWS * C.DEPTH, rows), C.ROWS):
            r = i + tl.arange(0, C.ROWS)
            in_rows = in_m[:, None] & (r < rows)[None, :]
            mask = in_rows[:, :, None] & in_c[None, None, :]
            tile = tile_at(m, r, c, sizes, mask, C)
            g = parts.ready(parts.read(g_at + rows_of(r, sizes), mask, C.COMPUTE, False, True), wanted, C.READY)
            row = factors_of(plane, m, r, rows, in_rows, col.ROW_STRIPS, C)[:, :, None]
            u = parts.update(g, row, column, least, C)
            p = formats.recall(p_at, tile, 0, False, True, 0.0, C)
            # Something stands in the place of V, of which nothing is made here.
            if C.STATES > 1:
                e = formats.recall(e_at, tile, 2, False, True, 0.0, C)
                new = C.APPLY(k, p, g, (u, e), (u, u))
                formats.keep(e_at, new[2], tile, 2, False, True, C)
            else:
                new = C.APPLY(k, p, g, (u,), (u, u))
            formats.keep(p_at, new[0], tile, 0, False, True, C)
        parts.count(params, tl.load(plane + col.PLANE_BASE) + number)
