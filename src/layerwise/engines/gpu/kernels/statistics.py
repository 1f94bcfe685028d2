"""Row and column statistics: adding up the strips that tiles leave, and making R, C and the factors of u.

Strips are in the dtype of the arithmetic, and so is a sum that has only one; other sums are in float64. `renew` writes
the factors over the strips.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import fetch, goes, put
from layerwise.engines.gpu.kernels.tables import (
    FACTORS,
    FULL_COLUMNS,
    FULL_ROWS,
    OF_ROWS,
    OWN,
    PILE,
    PILE_LENGTH,
    PILE_SUM,
    PROGRAM,
    PROGRAM_PART,
    PROGRAM_ROW,
    SIDE,
    SIDE_ENTRIES,
    SIDE_JOB,
    SIDE_MATRICES,
    STORED,
    STORED_AS,
    STRIPS,
    STRIPS_FIRST,
    SUMMED,
    SUMS,
    TOTAL_STRIPS,
    TOTALS,
    VARYING,
    WIDE,
    number,
)
from layerwise.engines.gpu.printed.adafactor import LEAST, averaged, averaged_mean

WIDE_FACTORS, WIDE_SUMS, WIDE_TOTALS = number(1), number(2), number(4)  # bits of WIDE: which are in float64


@triton.jit
def fold(piles, programs, DTYPE: tl.constexpr, LENGTH: tl.constexpr, DEPTH: tl.constexpr):
    """Add up the strips of a pile."""
    c = tl.program_id(0)
    pile = piles + tl.load(programs + PROGRAM * c + PROGRAM_ROW).to(tl.int64) * PILE
    i = tl.load(programs + PROGRAM * c + PROGRAM_PART).to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    n, strips = tl.load(pile + PILE_LENGTH), tl.load(pile + STRIPS).to(tl.int32)
    at = tl.load(pile + STRIPS_FIRST).to(tl.pointer_type(DTYPE))
    total = tl.zeros((DEPTH, LENGTH), tl.float64)
    for first in range(0, strips, DEPTH):
        strip = first + tl.arange(0, DEPTH)
        mask = (strip < strips)[:, None] & (i < n)[None, :]
        total += tl.load(at + strip.to(tl.int64)[:, None] * n + i[None, :], mask, other=0.0).to(tl.float64)
    tl.store(tl.load(pile + PILE_SUM).to(tl.pointer_type(tl.float64)) + i, tl.sum(total, 0), i < n)


@triton.jit
def recall(address, wide, at, mask, OTHER: tl.constexpr):
    """Load what `note` stored, in float64."""
    single = tl.load(address.to(tl.pointer_type(tl.float32)) + at, mask & (wide == 0), other=OTHER)
    double = tl.load(address.to(tl.pointer_type(tl.float64)) + at, mask & (wide != 0), other=OTHER)
    return tl.where(wide != 0, double, single.to(tl.float64))


@triton.jit
def note(address, wide, at, x, mask):
    single = tl.where(wide != 0, 0.0, x).to(tl.float32)
    tl.store(address.to(tl.pointer_type(tl.float32)) + at, single, mask & (wide == 0))
    tl.store(address.to(tl.pointer_type(tl.float64)) + at, x, mask & (wide != 0))


@triton.jit
def part_of(sides, programs, BM: tl.constexpr, BE: tl.constexpr):
    """Return the side that this program takes, its strip, and its matrices and statistics."""
    c = tl.program_id(0)
    side = sides + tl.load(programs + PROGRAM * c + PROGRAM_ROW).to(tl.int64) * SIDE
    number, n = tl.load(programs + PROGRAM * c + PROGRAM_PART), tl.load(side + SIDE_ENTRIES).to(tl.int32)
    across = tl.maximum(tl.cdiv(n, BE), 1)
    m, i = number // across * BM + tl.arange(0, BM), number % across * BE + tl.arange(0, BE)
    in_m = m < tl.load(side + SIDE_MATRICES)
    mask = in_m[:, None] & (i < n)[None, :]
    return side, number % across, m, in_m, mask, m.to(tl.int64)[:, None] * n + i[None, :]


@triton.jit
def total(sides, programs, BM: tl.constexpr, BE: tl.constexpr):
    """Compute, for each matrix, the sums of its row sums and of the old R."""
    side, strip, m, in_m, mask, at = part_of(sides, programs, BM, BE)
    wide = tl.load(side + WIDE)
    G_rows = recall(tl.load(side + SUMS), wide & WIDE_SUMS, at, mask, 0.0)
    R = fetch(tl.load(side + STORED), tl.load(side + STORED_AS), at, mask, 0.0)
    to, matrices = tl.load(side + TOTAL_STRIPS), tl.load(side + SIDE_MATRICES)
    first = 2 * strip * matrices + m
    note(to, wide & WIDE_TOTALS, first, tl.sum(G_rows, 1), in_m)
    note(to, wide & WIDE_TOTALS, first + matrices, tl.sum(R, 1), in_m)


@triton.jit(do_not_specialize=VARYING)
def renew(
    sides, programs, coefficients, width, skip,
    STORE: tl.constexpr, MAKE_FACTORS: tl.constexpr, SKIPS: tl.constexpr, BM: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Compute R and C of this step, and store them, or make the factors of u, or both."""
    side, _, m, in_m, mask, at = part_of(sides, programs, BM, BE)
    own = coefficients + tl.load(side + SIDE_JOB) * width + OWN
    wide = tl.load(side + WIDE)
    sums = recall(tl.load(side + SUMS), wide & WIDE_SUMS, at, mask, 1.0)
    mean = sums / tl.load(side + SUMMED).to(tl.float64)
    address, kind = tl.load(side + STORED), tl.load(side + STORED_AS)
    x = averaged(own, fetch(address, kind, at, mask, 1.0), mean)
    if MAKE_FACTORS:
        # mean(R) follows the recurrence that R obeys, so it is known as soon as the sums are.
        rows, columns = tl.load(side + FULL_ROWS).to(tl.float64), tl.load(side + FULL_COLUMNS).to(tl.float64)
        of_rows = tl.load(side + OF_ROWS) != 0
        totals, known, of_totals = tl.load(side + TOTALS), in_m & of_rows, wide & WIDE_TOTALS
        G_mean = recall(totals, of_totals, m, known, 1.0) / (rows * columns)
        R_mean = recall(totals, of_totals, m + tl.load(side + SIDE_MATRICES), known, 1.0) / rows
        R_mean, clamps = averaged_mean(own, R_mean, G_mean), tl.load(own + LEAST) > 0
        root = tl.sqrt(tl.where(mask, x / tl.where(of_rows, R_mean, 1.0)[:, None], 1.0))
        factor = tl.where(clamps, root, 1 / tl.where(clamps, 1.0, root))
        note(tl.load(side + FACTORS), wide & WIDE_FACTORS, at, factor, mask)
    if STORE:
        put(address, kind, at, x, mask & goes(skip, SKIPS))
