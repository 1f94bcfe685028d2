"""What planes.py keeps of its matrices: the sums that tiles leave, and R and C, which these make."""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.adafactor import A2, B2, EPS_ADDED
from layerwise.engines.gpu.kernels.parts import at_least, goes
from layerwise.engines.gpu.kernels.planes import along
from layerwise.engines.gpu.kernels.tables import (
    BFLOAT16,
    COLUMNS,
    EPS,
    FACTORS,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    NUMBERS,
    OF_ROWS,
    PILE,
    PILE_LENGTH,
    PILE_SUM,
    ROWS,
    SIDE,
    SIDE_AXIS,
    SIDE_ENTRIES,
    SIDE_JOB,
    SIDE_MATRICES,
    SIDE_MATRIX_AXIS,
    STORED,
    STORED_AS,
    STRIPS,
    STRIPS_FIRST,
    SUMMED,
    SUMS,
    TOTAL_STRIPS,
    TOTALS,
    WIDE,
)


@triton.jit
def fold(piles, work, store, LENGTH: tl.constexpr, DEPTH: tl.constexpr):
    """The sum of a pile's strips."""
    c = tl.program_id(0)
    pile = piles + tl.load(work + 2 * c).to(tl.int64) * PILE
    i = tl.load(work + 2 * c + 1).to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    n, strips, at = tl.load(pile + PILE_LENGTH), tl.load(pile + STRIPS).to(tl.int32), tl.load(pile + STRIPS_FIRST)
    total = tl.zeros((DEPTH, LENGTH), tl.float64)
    for first in range(0, strips, DEPTH):
        strip = first + tl.arange(0, DEPTH)
        here = (strip < strips)[:, None] & (i < n)[None, :]
        total += tl.load(store + at + strip.to(tl.int64)[:, None] * n + i[None, :], here, other=0.0)
    tl.store(store + tl.load(pile + PILE_SUM) + i, tl.sum(total, 0), i < n)


@triton.jit
def fetch(address, kind, at, here, OTHER: tl.constexpr):
    """A number of whichever dtype, in float64."""
    single = tl.load(address.to(tl.pointer_type(tl.float32)) + at, here & (kind == FLOAT32), other=OTHER)
    double = tl.load(address.to(tl.pointer_type(tl.float64)) + at, here & (kind == FLOAT64), other=OTHER)
    brain = tl.load(address.to(tl.pointer_type(tl.bfloat16)) + at, here & (kind == BFLOAT16), other=OTHER)
    half = tl.load(address.to(tl.pointer_type(tl.float16)) + at, here & (kind == FLOAT16), other=OTHER)
    low = tl.where(kind == BFLOAT16, brain.to(tl.float32), half.to(tl.float32))
    return tl.where(kind == FLOAT64, double, tl.where(kind == FLOAT32, single, low).to(tl.float64))


@triton.jit
def put(address, kind, at, x, here):
    """Store a number as whichever dtype. What is too large for a dtype is not converted to another than its own."""
    single = tl.where(kind == FLOAT64, 0.0, x).to(tl.float32)
    half = tl.where(kind == FLOAT16, single, 0.0).to(tl.float16)
    tl.store(address.to(tl.pointer_type(tl.float32)) + at, single, here & (kind == FLOAT32))
    tl.store(address.to(tl.pointer_type(tl.float64)) + at, x, here & (kind == FLOAT64))
    tl.store(address.to(tl.pointer_type(tl.bfloat16)) + at, single.to(tl.bfloat16), here & (kind == BFLOAT16))
    tl.store(address.to(tl.pointer_type(tl.float16)) + at, half, here & (kind == FLOAT16))


@triton.jit
def part_of(sides, work, BM: tl.constexpr, BE: tl.constexpr):
    """A side, the number of its strip that this program takes, and which matrices and statistics these are."""
    c = tl.program_id(0)
    side = sides + tl.load(work + 2 * c).to(tl.int64) * SIDE
    number, n = tl.load(work + 2 * c + 1), tl.load(side + SIDE_ENTRIES).to(tl.int32)
    across = tl.maximum(tl.cdiv(n, BE), 1)
    m, i = number // across * BM + tl.arange(0, BM), number % across * BE + tl.arange(0, BE)
    in_m = m < tl.load(side + SIDE_MATRICES)
    here = in_m[:, None] & (i < n)[None, :]
    stored = along(side + SIDE_MATRIX_AXIS, m, 0, 1)[:, None] + along(side + SIDE_AXIS, i, 0, 1)[None, :]
    return side, number % across, m, in_m, here, m.to(tl.int64)[:, None] * n + i[None, :], stored


@triton.jit
def total(sides, work, store, BM: tl.constexpr, BE: tl.constexpr):
    """Of each matrix, the sum of its rows' sums, and of the R that there was."""
    side, strip, m, in_m, here, at, stored = part_of(sides, work, BM, BE)
    G_rows = tl.load(store + tl.load(side + SUMS) + at, here, other=0.0)
    R = fetch(tl.load(side + STORED), tl.load(side + STORED_AS), stored, here, 0.0)
    to = store + tl.load(side + TOTAL_STRIPS) + 2 * strip * tl.load(side + SIDE_MATRICES) + m
    tl.store(to, tl.sum(G_rows, 1), in_m)
    tl.store(to + tl.load(side + SIDE_MATRICES), tl.sum(R, 1), in_m)


@triton.jit
def renew(
    sides, work, numbers, store, skip,
    KEEP: tl.constexpr, USE: tl.constexpr, SKIPS: tl.constexpr, BM: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """R and C of this step: stored, or what u is made with, or both."""
    side, _, m, in_m, here, at, stored = part_of(sides, work, BM, BE)
    told = numbers + tl.load(side + SIDE_JOB) * NUMBERS
    b2, a2, added, eps1 = tl.load(told + B2), tl.load(told + A2), tl.load(told + EPS_ADDED), tl.load(told + EPS)
    mean = tl.load(store + tl.load(side + SUMS) + at, here, other=1.0) / tl.load(side + SUMMED).to(tl.float64)
    address, kind = tl.load(side + STORED), tl.load(side + STORED_AS)
    x = b2 * fetch(address, kind, stored, here, 1.0) + a2 * (mean + added)
    if USE:
        clamps = added == 0
        # By the recurrence that R obeys, and so known as soon as the sums are.
        rows, columns = tl.load(side + ROWS).to(tl.float64), tl.load(side + COLUMNS).to(tl.float64)
        of_rows = tl.load(side + OF_ROWS) != 0
        totals, known = store + tl.load(side + TOTALS) + m, in_m & of_rows
        G_mean = tl.load(totals, known, other=1.0) / (rows * columns)
        R_mean = tl.load(totals + tl.load(side + SIDE_MATRICES), known, other=1.0) / rows
        R_mean = b2 * R_mean + a2 * (G_mean + added)
        R_mean = tl.where(clamps, at_least(R_mean, eps1), R_mean)
        root = tl.sqrt(tl.where(here, x / tl.where(of_rows, R_mean, 1.0)[:, None], 1.0))
        factor = tl.where(clamps, root, 1 / tl.where(clamps, 1.0, root))
        wide, to = tl.load(side + WIDE) != 0, tl.load(side + FACTORS)
        put(to, tl.where(wide, FLOAT64, FLOAT32), at, factor, here)
    if KEEP:
        put(address, kind, stored, x, here & goes(skip, SKIPS))
