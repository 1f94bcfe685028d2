"""Adafactor where V is factored (rules/adafactor.py), cut where the rule yields.

    measure: Σ(g²) along lines and along entries, Σp²      → fold, total (statistics.py)
    renew:   R ← b2·R + a2·(mean + eps1), C likewise       → 1/√(R/mean(R)), 1/√C; their roots where eps1 clamps
    squares: Σu²,  u = g·line·entry                        → adafactor.answer
    apply:   p, e

A tensor is a stack of matrices, a matrix has lines, a line has entries, and entries are what lies nearest to one
another in memory; R belongs to lines and C to entries, or the other way round. A program takes a tile of so many
matrices, lines and entries, and then the tiles below it. Its partial sum along a line is one of several strips of that
line's sum, which are added up afterwards, always in the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.adafactor import move, steps_of
from layerwise.engines.gpu.kernels.parts import at_least, count, goes, read, ready, squared, wants
from layerwise.engines.gpu.kernels.tables import (
    AXIS_DIM,
    AXIS_DIMS,
    AXIS_SIZE,
    AXIS_STRIDE,
    COEFFICIENTS,
    ENTRIES_OF_LINE,
    ENTRY_AXIS,
    ENTRY_FACTORS,
    ENTRY_SUMS,
    EPS,
    GRADIENT,
    LAYER,
    LINE_AXIS,
    LINE_FACTORS,
    LINE_SUMS,
    LINES,
    MATRICES,
    MATRIX_AXIS,
    OPERANDS,
    PLANE,
    PLANE_BASE,
    PLANE_JOB,
    PLANE_LAYER,
    PROGRAM,
    PROGRAM_PART,
    PROGRAM_ROW,
    S0,
    TILES_FIRST,
    VARYING,
    G,
    P,
)

# ---- where things lie


@triton.jit
def along(axis, i, WHICH: tl.constexpr, VECTOR: tl.constexpr):
    """Return the offset of element i of an axis: with a VECTOR, a multiple that the compiler recognizes."""
    stride = axis + AXIS_STRIDE + WHICH
    if VECTOR > 1:
        return i.to(tl.int64) * (tl.load(stride) // VECTOR * VECTOR)
    rest, at = i, tl.zeros_like(i).to(tl.int64)
    outermost = tl.load(axis + AXIS_DIMS).to(tl.int32) - 1
    for d in range(outermost):
        size = tl.load(axis + AXIS_SIZE + d * AXIS_DIM).to(tl.int32)
        at += (rest % size).to(tl.int64) * tl.load(stride + d * AXIS_DIM)
        rest = rest // size
    return at + rest.to(tl.int64) * tl.load(stride + outermost * AXIS_DIM)


@triton.jit
def tile_of(
    planes, tiles, c, BM: tl.constexpr, BL: tl.constexpr, BE: tl.constexpr, DEPTH: tl.constexpr, VECTOR: tl.constexpr
):
    """Return the plane of tile c, the numbers of the tile and of its strips, and its matrices, lines and entries."""
    plane = planes + tl.load(tiles + PROGRAM * c + PROGRAM_ROW).to(tl.int64) * PLANE
    number = tl.load(tiles + PROGRAM * c + PROGRAM_PART)
    lines = tl.load(plane + LINES).to(tl.int32)
    entries = (tl.load(plane + ENTRIES_OF_LINE) // VECTOR * VECTOR).to(tl.int32)
    down, across = tl.maximum(tl.cdiv(lines, BL * DEPTH), 1), tl.maximum(tl.cdiv(entries, BE), 1)
    over, under = number % across, number // across % down
    m = number // across // down * BM + tl.arange(0, BM)
    e = over * BE + tl.arange(0, BE)
    return plane, number, over, under, m, e, lines, entries


@triton.jit
def corner(plane, address, m, e, WHICH: tl.constexpr, DTYPE: tl.constexpr, VECTOR: tl.constexpr):
    """Return where this operand has the first line of these matrices and entries."""
    at = address.to(tl.pointer_type(DTYPE)) + tl.load(plane + PLANE_BASE + WHICH)
    if VECTOR > 1:
        # The hint stands here because the compiler attaches it to the operation that makes the pointer.
        at = tl.multiple_of(at, 16)
        return at + along(plane + MATRIX_AXIS, m, WHICH, VECTOR)[:, None, None] + e[None, None, :]
    matrices, entries = along(plane + MATRIX_AXIS, m, WHICH, 1), along(plane + ENTRY_AXIS, e, WHICH, 1)
    return at + matrices[:, None, None] + entries[None, None, :]


@triton.jit
def lines_of(plane, lines, WHICH: tl.constexpr, VECTOR: tl.constexpr):
    return along(plane + LINE_AXIS, lines, WHICH, VECTOR)[None, :, None]


@triton.jit
def factors_of(plane, m, i, n, mask, WHICH: tl.constexpr, COMPUTE: tl.constexpr):
    """Load the factors of lines, or of entries, of these matrices."""
    at = tl.load(plane + WHICH).to(tl.pointer_type(COMPUTE))
    return tl.load(at + m.to(tl.int64)[:, None] * n + i[None, :], mask, other=1.0)


# ---- tiles


@triton.jit(do_not_specialize=VARYING)
def measure(
    step_params, coefficients, pointers, layers, planes, tiles, clips, tiled, skip, jobs,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr, COMPUTE: tl.constexpr,
    SCALES: tl.constexpr, READY: tl.constexpr, SKIPS: tl.constexpr, VECTOR: tl.constexpr,
    BM: tl.constexpr, BL: tl.constexpr, BE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Compute each tile's strips of the sums of g² along lines and along entries, and its Σp²."""
    plane, number, over, under, m, e, lines, entries = tile_of(
        planes, tiles, tl.program_id(0), BM, BL, BE, DEPTH, VECTOR
    )
    job = tl.load(plane + PLANE_JOB)
    wanted = wants(coefficients, job, tl.load(clips + tl.load(plane + PLANE_LAYER)), COMPUTE)
    p_at = corner(plane, tl.load(pointers + job * OPERANDS + P), m, e, P, PARAM, VECTOR)
    g_at = corner(plane, tl.load(step_params + GRADIENT * jobs + job), m, e, G, GRAD, VECTOR)
    matrices = tl.load(plane + MATRICES)
    of_lines = tl.load(plane + LINE_SUMS).to(tl.pointer_type(COMPUTE)) + (over * matrices + m.to(tl.int64)) * lines
    of_entries = (
        tl.load(plane + ENTRY_SUMS).to(tl.pointer_type(COMPUTE)) + (under * matrices + m.to(tl.int64)) * entries
    )
    in_m, in_e, goes_on = m < matrices, e < entries, goes(skip, SKIPS)
    pp, by_entry = tl.zeros((BM, BL, BE), tl.float64), tl.zeros((BM, BL, BE), COMPUTE)
    first = under * BL * DEPTH
    for i in range(first, tl.minimum(first + BL * DEPTH, lines), BL):
        line = i + tl.arange(0, BL)
        in_lines = in_m[:, None] & (line < lines)[None, :]
        mask = in_lines[:, :, None] & in_e[None, None, :] & goes_on
        g = ready(read(g_at + lines_of(plane, line, G, VECTOR), mask, COMPUTE, False), wanted, mask, READY)
        gg = g * g
        tl.store(of_lines[:, None] + line[None, :], tl.sum(gg, 2), in_lines)
        by_entry += gg
        if SCALES:
            p = read(p_at + lines_of(plane, line, P, VECTOR), mask, COMPUTE, False)
            pp += squared(p)
    tl.store(of_entries[:, None] + e[None, :], tl.sum(by_entry, 1), in_m[:, None] & in_e[None, :])
    if SCALES:
        tl.store(tiled + tl.load(plane + TILES_FIRST) + number, tl.sum(pp))


@triton.jit
def update(g, line, entry, eps1, CLAMP: tl.constexpr):
    if CLAMP:
        return g / at_least(line * entry, eps1)
    return g * line * entry


@triton.jit(do_not_specialize=VARYING)
def squares(
    step_params, coefficients, pointers, layers, planes, tiles, clips, tiled, sums_stride, skip, jobs,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr, COMPUTE: tl.constexpr,
    CLAMP: tl.constexpr, READY: tl.constexpr, SKIPS: tl.constexpr, VECTOR: tl.constexpr,
    BM: tl.constexpr, BL: tl.constexpr, BE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Compute Σu² of each tile, in reverse order, because caches may still hold the last tiles."""
    c = tl.num_programs(0) - 1 - tl.program_id(0)
    plane, number, _, under, m, e, lines, entries = tile_of(planes, tiles, c, BM, BL, BE, DEPTH, VECTOR)
    job = tl.load(plane + PLANE_JOB)
    wanted = wants(coefficients, job, tl.load(clips + tl.load(plane + PLANE_LAYER)), COMPUTE)
    eps1 = tl.load(coefficients + job * COEFFICIENTS + EPS).to(COMPUTE)
    g_at = corner(plane, tl.load(step_params + GRADIENT * jobs + job), m, e, G, GRAD, VECTOR)
    in_m, in_e, goes_on = m < tl.load(plane + MATRICES), e < entries, goes(skip, SKIPS)
    entry = factors_of(plane, m, e, entries, in_m[:, None] & in_e[None, :], ENTRY_FACTORS, COMPUTE)[:, None, :]
    uu = tl.zeros((BM, BL, BE), tl.float64)
    first = under * BL * DEPTH
    for i in range(first, tl.minimum(first + BL * DEPTH, lines), BL):
        at = i + tl.arange(0, BL)
        in_lines = in_m[:, None] & (at < lines)[None, :]
        mask = in_lines[:, :, None] & in_e[None, None, :] & goes_on
        g = ready(read(g_at + lines_of(plane, at, G, VECTOR), mask, COMPUTE, False), wanted, mask, READY)
        line = factors_of(plane, m, at, lines, in_lines, LINE_FACTORS, COMPUTE)[:, :, None]
        u = tl.where(mask, update(g, line, entry, eps1, CLAMP), 0.0)
        uu += squared(u)
    to = tiled + sums_stride + tl.load(plane + TILES_FIRST) + number
    tl.store(to, tl.sum(uu))


@triton.jit(do_not_specialize=VARYING)
def apply(
    step_params, coefficients, pointers, layers, planes, tiles, clips, answers, skip, jobs,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr, COMPUTE: tl.constexpr,
    MOMENTUM: tl.constexpr, CLAMP: tl.constexpr, READY: tl.constexpr, SKIPS: tl.constexpr, VECTOR: tl.constexpr,
    BM: tl.constexpr, BL: tl.constexpr, BE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Write p and e."""
    plane, number, _, under, m, e, lines, entries = tile_of(planes, tiles, tl.program_id(0), BM, BL, BE, DEPTH, VECTOR)
    job, layer = tl.load(plane + PLANE_JOB), tl.load(plane + PLANE_LAYER)
    wanted = wants(coefficients, job, tl.load(clips + layer), COMPUTE)
    eps1, steps = (
        tl.load(coefficients + job * COEFFICIENTS + EPS).to(COMPUTE),
        steps_of(coefficients, job, answers, layer, COMPUTE),
    )
    p_at = corner(plane, tl.load(pointers + job * OPERANDS + P), m, e, P, PARAM, VECTOR)
    g_at = corner(plane, tl.load(step_params + GRADIENT * jobs + job), m, e, G, GRAD, VECTOR)
    e_at = corner(plane, tl.load(pointers + job * OPERANDS + S0), m, e, S0, STATE0, VECTOR)
    in_m, in_e = m < tl.load(plane + MATRICES), e < entries
    entry = factors_of(plane, m, e, entries, in_m[:, None] & in_e[None, :], ENTRY_FACTORS, COMPUTE)[:, None, :]
    first = under * BL * DEPTH
    if goes(skip, SKIPS):
        for i in range(first, tl.minimum(first + BL * DEPTH, lines), BL):
            at = i + tl.arange(0, BL)
            in_lines = in_m[:, None] & (at < lines)[None, :]
            mask = in_lines[:, :, None] & in_e[None, None, :]
            g = ready(read(g_at + lines_of(plane, at, G, VECTOR), mask, COMPUTE, False), wanted, mask, READY)
            line = factors_of(plane, m, at, lines, in_lines, LINE_FACTORS, COMPUTE)[:, :, None]
            u = update(g, line, entry, eps1, CLAMP)
            to, averaged = p_at + lines_of(plane, at, P, VECTOR), e_at + lines_of(plane, at, S0, VECTOR)
            move(to, averaged, u, steps, mask, COMPUTE, MOMENTUM, False)
        count(step_params, coefficients, jobs, layers + layer * LAYER, job, number)
