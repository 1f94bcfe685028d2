"""Row and column statistics: adding up the strips that tiles leave, and making R, C and the factors of u.

Strips are in the dtype of the arithmetic, and so is a sum that has only one; other sums are in float64. `renew` writes
the factors over the strips.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import parts
from layerwise.engines.gpu.kernels import tables as col
from layerwise.engines.gpu.kernels.tables import VARYING
from layerwise.engines.gpu.printed.adafactor import LEAST, averaged, averaged_mean


@triton.jit
def fold(piles, programs, C: tl.constexpr):
    """Add up the strips of a pile."""
    row, part = parts.part_of(programs, tl.program_id(0))
    pile, i = piles + row.to(tl.int64) * col.PILE, part.to(tl.int64) * C.LENGTH + tl.arange(0, C.LENGTH)
    n, strips = tl.load(pile + col.PILE_LENGTH), tl.load(pile + col.STRIPS).to(tl.int32)
    at = tl.load(pile + col.STRIPS_FIRST).to(tl.pointer_type(C.DTYPE))
    total = tl.zeros((C.DEPTH, C.LENGTH), tl.float64)
    for first in range(0, strips, C.DEPTH):
        strip = first + tl.arange(0, C.DEPTH)
        mask = (strip < strips)[:, None] & (i < n)[None, :]
        total += tl.load(at + strip.to(tl.int64)[:, None] * n + i[None, :], mask, other=0.0).to(tl.float64)
    tl.store(tl.load(pile + col.PILE_SUM).to(tl.pointer_type(tl.float64)) + i, tl.sum(total, 0), i < n)


@triton.jit
def side_of(sides, programs, C: tl.constexpr):
    """Return the side that this program takes, its strip, and its matrices and statistics."""
    row, part = parts.part_of(programs, tl.program_id(0))
    side = sides + row.to(tl.int64) * col.SIDE
    n = tl.load(side + col.SIDE_ENTRIES).to(tl.int32)
    across = tl.maximum(tl.cdiv(n, C.ENTRIES), 1)
    m, i = part // across * C.MATRICES + tl.arange(0, C.MATRICES), part % across * C.ENTRIES + tl.arange(0, C.ENTRIES)
    in_m = m < tl.load(side + col.SIDE_MATRICES)
    mask = in_m[:, None] & (i < n)[None, :]
    return side, part % across, m, in_m, mask, m.to(tl.int64)[:, None] * n + i[None, :]


@triton.jit
def total(sides, programs, C: tl.constexpr):
    """Compute, for each matrix, the sums of its row sums and of the old R."""
    side, strip, m, in_m, mask, at = side_of(sides, programs, C)
    G_rows = parts.fetch(tl.load(side + col.SUMS), tl.load(side + col.SUMS_AS), at, mask, 0.0, False)
    R = parts.fetch(tl.load(side + col.STORED), tl.load(side + col.STORED_AS), at, mask, 0.0)
    to, kind = tl.load(side + col.TOTAL_STRIPS), tl.load(side + col.TOTALS_AS)
    matrices = tl.load(side + col.SIDE_MATRICES)
    first = 2 * strip * matrices + m
    parts.put(to, kind, first, tl.sum(G_rows, 1), in_m, False)
    parts.put(to, kind, first + matrices, tl.sum(R, 1), in_m, False)


@triton.jit(do_not_specialize=VARYING)
def renew(sides, programs, step_params, skip, width, C: tl.constexpr):
    """Compute R and C of this step, and store them, or make the factors of u, or both."""
    side, _, m, in_m, mask, at = side_of(sides, programs, C)
    own = parts.coefficients_of(step_params + tl.load(side + col.SIDE_JOB) * width) + col.OWN
    sums = parts.fetch(tl.load(side + col.SUMS), tl.load(side + col.SUMS_AS), at, mask, 1.0, False)
    mean = sums / tl.load(side + col.SUMMED).to(tl.float64)
    address, kind = tl.load(side + col.STORED), tl.load(side + col.STORED_AS)
    x = averaged(own, parts.fetch(address, kind, at, mask, 1.0), mean)
    if C.MAKE_FACTORS:
        # mean(R) follows the recurrence that R obeys, so it is known as soon as the sums are.
        rows, columns = tl.load(side + col.FULL_ROWS).to(tl.float64), tl.load(side + col.FULL_COLUMNS).to(tl.float64)
        of_rows = tl.load(side + col.OF_ROWS) != 0
        totals, totals_as, known = tl.load(side + col.TOTALS), tl.load(side + col.TOTALS_AS), in_m & of_rows
        G_mean = parts.fetch(totals, totals_as, m, known, 1.0, False) / (rows * columns)
        R_mean = parts.fetch(totals, totals_as, m + tl.load(side + col.SIDE_MATRICES), known, 1.0, False) / rows
        R_mean, clamps = averaged_mean(own, R_mean, G_mean), tl.load(own + LEAST) > 0
        root = tl.sqrt(tl.where(mask, x / tl.where(of_rows, R_mean, 1.0)[:, None], 1.0))
        factor = tl.where(clamps, root, 1 / tl.where(clamps, 1.0, root))
        parts.put(tl.load(side + col.FACTORS), tl.load(side + col.FACTORS_AS), at, factor, mask, False)
    if C.STORE:
        parts.put(address, kind, at, x, mask & parts.goes(skip, C))
