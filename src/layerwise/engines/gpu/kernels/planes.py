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

from layerwise.engines.gpu.kernels.formats import CODES, GROUP, keep, recall, storage_of, stored
from layerwise.engines.gpu.kernels.parts import count, element, goes, read, ready, summed, update, wants
from layerwise.engines.gpu.kernels.tables import (
    ANSWERED,
    ANSWERS,
    COLUMN_FACTORS,
    COLUMN_SUMS,
    COLUMNS,
    GRADIENT,
    MATRICES,
    OPERANDS,
    OWN,
    PLANE,
    PLANE_BASE,
    PLANE_JOB,
    PLANE_LAYER,
    PROGRAM,
    PROGRAM_PART,
    PROGRAM_ROW,
    ROW_FACTORS,
    ROW_SUMS,
    ROWS,
    S1,
    TILES_FIRST,
    VARYING,
    P,
)
from layerwise.engines.gpu.printed.adafactor import LEAST

# ---- where things lie


@triton.jit
def tile_of(
    planes, tiles, c, BM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, DEPTH: tl.constexpr, VECTOR: tl.constexpr
):
    """Return the plane of tile c, its sizes, the numbers of the tile and of its strips, its matrices and its columns.

    With a VECTOR, the compiler recognizes of which numbers it is a divisor.
    """
    plane = planes + tl.load(tiles + PROGRAM * c + PROGRAM_ROW).to(tl.int64) * PLANE
    number, matrices = tl.load(tiles + PROGRAM * c + PROGRAM_PART), tl.load(plane + MATRICES).to(tl.int32)
    if BR * BC == 1:
        matrices = matrices // VECTOR * VECTOR
        rows, columns = tl.full((), 1, tl.int32), tl.full((), 1, tl.int32)
    else:
        rows = tl.load(plane + ROWS).to(tl.int32)
        columns = tl.load(plane + COLUMNS).to(tl.int32) // VECTOR * VECTOR
    down, across = tl.maximum(tl.cdiv(rows, BR * DEPTH), 1), tl.maximum(tl.cdiv(columns, BC), 1)
    over, under = number % across, number // across % down
    m = number // across // down * BM + tl.arange(0, BM)
    return plane, (matrices, rows, columns), number, over, under, m, over * BC + tl.arange(0, BC)


@triton.jit
def corner(plane, address, m, c, sizes, DTYPE: tl.constexpr, VECTOR: tl.constexpr):
    """Return the address of the first row of these matrices and columns in this operand."""
    _, rows, columns = sizes
    at = address.to(tl.pointer_type(DTYPE)) + tl.load(plane + PLANE_BASE)
    if VECTOR > 1:
        # The hint stands here because the compiler attaches it to the operation that makes the pointer.
        at = tl.multiple_of(at, 16)
    return at + (m.to(tl.int64) * rows * columns)[:, None, None] + c[None, None, :]


@triton.jit
def operand(
    step_params, pointers, job, width, plane, m, c, sizes, COLUMN: tl.constexpr, WHICH: tl.constexpr,
    DTYPE: tl.constexpr, FORMATS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Return an array like `corner`, or in its format from the plane's first element on."""
    address = tl.load(pointers + job * OPERANDS + COLUMN)
    begin, storage = tl.load(plane + PLANE_BASE), storage_of(pointers, job, FORMATS)
    at = element(address, begin, DTYPE, VECTOR > 1) if FORMATS else corner(plane, address, m, c, sizes, DTYPE, VECTOR)
    return stored(at, storage, step_params, job, width, begin, begin // GROUP, WHICH, FORMATS, VECTOR > 1)


@triton.jit
def tile_at(m, r, c, sizes, mask, FORMATS: tl.constexpr):
    """Return the offsets of a tile's elements and groups from the operands' start, and the mask of existing ones."""
    at = rows_of(r, sizes)
    j, there = at, mask
    if FORMATS:
        _, rows, columns = sizes
        at = (m.to(tl.int64) * rows * columns)[:, None, None] + at + c[None, None, :]
    if CODES << 10 & FORMATS:
        j = tl.min(tl.reshape(at, (at.numel // GROUP, GROUP)), 1) // GROUP
        there = tl.max(tl.reshape(mask.to(tl.int32), (at.numel // GROUP, GROUP)), 1) > 0
    return at, j, mask, there


@triton.jit
def rows_of(r, sizes):
    """Return the offsets of these rows."""
    _, _, columns = sizes
    return (r.to(tl.int64) * columns)[None, :, None]


@triton.jit
def factors_of(plane, m, i, n, mask, WHICH: tl.constexpr, COMPUTE: tl.constexpr):
    """Load the factors of rows, or of columns, of these matrices."""
    at = tl.load(plane + WHICH).to(tl.pointer_type(COMPUTE))
    return tl.load(at + m.to(tl.int64)[:, None] * n + i[None, :], mask, other=1.0)


# ---- tiles


@triton.jit(do_not_specialize=VARYING)
def measure(
    step_params, coefficients, pointers, layers, planes, tiles, clips, tiled, skip, width,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr, STATE2: tl.constexpr,
    STATE3: tl.constexpr, COMPUTE: tl.constexpr,
    SCALES: tl.constexpr, READY: tl.constexpr, SKIPS: tl.constexpr, FORMATS: tl.constexpr, VECTOR: tl.constexpr,
    BM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Compute each tile's strips of the sums of g² by rows and by columns, and its Σp²."""
    plane, sizes, number, over, under, m, c = tile_of(planes, tiles, tl.program_id(0), BM, BR, BC, DEPTH, VECTOR)
    matrices, rows, columns = sizes
    job = tl.load(plane + PLANE_JOB)
    wanted = wants(coefficients + job * width, tl.load(clips + tl.load(plane + PLANE_LAYER)), COMPUTE)
    p_at = operand(step_params, pointers, job, width, plane, m, c, sizes, P, 0, PARAM, FORMATS, VECTOR)
    g_at = corner(plane, tl.load(step_params + job * width + GRADIENT), m, c, sizes, GRAD, VECTOR)
    strip = tl.load(plane + ROW_SUMS).to(tl.pointer_type(COMPUTE))
    of_rows = strip + (over * matrices.to(tl.int64) + m) * rows
    strip = tl.load(plane + COLUMN_SUMS).to(tl.pointer_type(COMPUTE))
    of_columns = strip + (under * matrices.to(tl.int64) + m) * columns
    in_m, in_c, goes_on = m < matrices, c < columns, goes(skip, SKIPS)
    pp, by_column = tl.zeros((BM, BR, BC), tl.float64), tl.zeros((BM, BR, BC), COMPUTE)
    first = under * BR * DEPTH
    for i in range(first, tl.minimum(first + BR * DEPTH, rows), BR):
        r = i + tl.arange(0, BR)
        in_rows = in_m[:, None] & (r < rows)[None, :]
        mask = in_rows[:, :, None] & in_c[None, None, :] & goes_on
        g = ready(read(g_at + rows_of(r, sizes), mask, COMPUTE, False), wanted, READY)
        gg = tl.where(mask, g * g, 0.0)
        tl.store(of_rows[:, None] + r[None, :], tl.sum(gg, 2), in_rows)
        by_column += gg
        if SCALES:
            p = recall(p_at, tile_at(m, r, c, sizes, mask, FORMATS), 0, FORMATS, COMPUTE, False, False, 0.0)
            pp += summed(p, mask, False, True)
    tl.store(of_columns[:, None] + c[None, :], tl.sum(by_column, 1), in_m[:, None] & in_c[None, :])
    if SCALES:
        tl.store(tiled + tl.load(plane + TILES_FIRST) + number, tl.sum(pp))


@triton.jit(do_not_specialize=VARYING)
def squares(
    step_params, coefficients, pointers, layers, planes, tiles, clips, tiled, skip, width,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr, STATE2: tl.constexpr,
    STATE3: tl.constexpr, COMPUTE: tl.constexpr,
    CLAMP: tl.constexpr, READY: tl.constexpr, SKIPS: tl.constexpr, FORMATS: tl.constexpr, VECTOR: tl.constexpr,
    BM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Compute Σu² of each tile, in reverse order, because caches may still hold the last tiles."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    plane, sizes, number, _, under, m, c = tile_of(planes, tiles, tile, BM, BR, BC, DEPTH, VECTOR)
    matrices, rows, columns = sizes
    job = tl.load(plane + PLANE_JOB)
    wanted = wants(coefficients + job * width, tl.load(clips + tl.load(plane + PLANE_LAYER)), COMPUTE)
    least = tl.load(coefficients + job * width + OWN + LEAST).to(COMPUTE)
    g_at = corner(plane, tl.load(step_params + job * width + GRADIENT), m, c, sizes, GRAD, VECTOR)
    in_m, in_c, goes_on = m < matrices, c < columns, goes(skip, SKIPS)
    column = factors_of(plane, m, c, columns, in_m[:, None] & in_c[None, :], COLUMN_FACTORS, COMPUTE)[:, None, :]
    uu = tl.zeros((BM, BR, BC), tl.float64)
    first = under * BR * DEPTH
    for i in range(first, tl.minimum(first + BR * DEPTH, rows), BR):
        r = i + tl.arange(0, BR)
        in_rows = in_m[:, None] & (r < rows)[None, :]
        mask = in_rows[:, :, None] & in_c[None, None, :] & goes_on
        g = ready(read(g_at + rows_of(r, sizes), mask, COMPUTE, False), wanted, READY)
        row = factors_of(plane, m, r, rows, in_rows, ROW_FACTORS, COMPUTE)[:, :, None]
        uu += summed(update(g, row, column, least, CLAMP), mask, False, False)
    tl.store(tiled + tl.load(plane + TILES_FIRST) + number, tl.sum(uu))


@triton.jit(do_not_specialize=VARYING)
def apply(
    step_params, coefficients, pointers, layers, planes, tiles, clips, answers, skip, width,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr, STATE2: tl.constexpr,
    STATE3: tl.constexpr, COMPUTE: tl.constexpr,
    VALUES: tl.constexpr, APPLY: tl.constexpr, MOMENTUM: tl.constexpr, CLAMP: tl.constexpr,
    READY: tl.constexpr, SKIPS: tl.constexpr, FORMATS: tl.constexpr, VECTOR: tl.constexpr,
    BM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Write p and e."""
    plane, sizes, number, _, under, m, c = tile_of(planes, tiles, tl.program_id(0), BM, BR, BC, DEPTH, VECTOR)
    matrices, rows, columns = sizes
    job, layer = tl.load(plane + PLANE_JOB), tl.load(plane + PLANE_LAYER)
    wanted = wants(coefficients + job * width, tl.load(clips + layer), COMPUTE)
    least = tl.load(coefficients + job * width + OWN + LEAST).to(COMPUTE)
    k = VALUES(coefficients + job * width + OWN, answers + layer * ANSWERS + ANSWERED, COMPUTE)
    p_at = operand(step_params, pointers, job, width, plane, m, c, sizes, P, 0, PARAM, FORMATS, VECTOR)
    g_at = corner(plane, tl.load(step_params + job * width + GRADIENT), m, c, sizes, GRAD, VECTOR)
    e_at = operand(step_params, pointers, job, width, plane, m, c, sizes, S1, 2, STATE1, FORMATS, VECTOR)
    in_m, in_c = m < matrices, c < columns
    column = factors_of(plane, m, c, columns, in_m[:, None] & in_c[None, :], COLUMN_FACTORS, COMPUTE)[:, None, :]
    first = under * BR * DEPTH
    if goes(skip, SKIPS):
        for i in range(first, tl.minimum(first + BR * DEPTH, rows), BR):
            r = i + tl.arange(0, BR)
            in_rows = in_m[:, None] & (r < rows)[None, :]
            mask = in_rows[:, :, None] & in_c[None, None, :]
            tile = tile_at(m, r, c, sizes, mask, FORMATS)
            g = ready(read(g_at + rows_of(r, sizes), mask, COMPUTE, False, True), wanted, READY)
            row = factors_of(plane, m, r, rows, in_rows, ROW_FACTORS, COMPUTE)[:, :, None]
            u = update(g, row, column, least, CLAMP)
            p = recall(p_at, tile, 0, FORMATS, COMPUTE, False, True, 0.0)
            # Something stands in the place of V, of which nothing is made here.
            if MOMENTUM:
                e = recall(e_at, tile, 2, FORMATS, COMPUTE, False, True, 0.0)
                new = APPLY(k, p, g, (u, e), (u, u))
                keep(e_at, new[2], tile, 2, FORMATS, False, True)
            else:
                new = APPLY(k, p, g, (u,), (u, u))
            keep(p_at, new[0], tile, 0, FORMATS, False, True)
        count(step_params, width, job, tl.load(plane + PLANE_BASE) + number)
