"""Layers with state by rows and by columns, in tiles.

The sums of their first round are by rows, columns and matrices, and what the program makes of these is read in all
later passes (statistics.py). A layer is a stack of matrices in one stretch of memory. Its blocks are tiles of so many
matrices, rows and columns, and a chunk is a tile and those below it. Its sums along rows are one of several strips of
those sums, which are added up afterwards, always in the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import formats
from layerwise.engines.gpu.kernels import tables as col


@triton.jit
def corner_of(row, part, C: tl.constexpr):
    """Return where part of a layer begins in it, its rows, and its corner.

    That is the layer's row, the layer's sizes, and the first matrix, row and column. With a VECTOR, the compiler
    recognizes of which numbers it is a divisor.
    """
    matrices, rows = tl.load(row + col.MATRICES).to(tl.int32), tl.load(row + col.ROWS).to(tl.int32)
    columns = tl.load(row + col.COLUMNS).to(tl.int32) // C.VECTOR * C.VECTOR
    down, across = tl.maximum(tl.cdiv(rows, C.CHUNK), 1), tl.maximum(tl.cdiv(columns, C.SHAPE[2]), 1)
    m, r, c = part // across // down * C.SHAPE[0], part // across % down * C.CHUNK, part % across * C.SHAPE[2]
    start = (m.to(tl.int64) * rows + r) * columns + c
    return start, tl.minimum(rows - r, C.CHUNK), (row, matrices, rows, columns, m, r, c)


@triton.jit
def existing(corner, x, n, C: tl.constexpr):
    """Return the mask of the existing rows, or columns, of a tile's matrices, which are x of n."""
    m = corner[4] + tl.arange(0, C.SHAPE[0])
    return (m < corner[1])[:, None] & (x < n)[None, :]


@triton.jit
def block_of(corner, i, C: tl.constexpr):
    """Return a tile's elements and groups, counted from the chunk's first, and the masks of the existing ones."""
    _, _, rows, columns, _, r0, c0 = corner
    m, r, c = tl.arange(0, C.SHAPE[0]), i + tl.arange(0, C.SHAPE[1]), tl.arange(0, C.SHAPE[2])
    row = (m.to(tl.int64)[:, None] * rows + r[None, :])[:, :, None]
    in_rows = existing(corner, r0 + r, rows, C)[:, :, None]
    e, mask = row * columns + c[None, None, :], in_rows & (c0 + c < columns)[None, None, :]
    j, there = e, mask
    if C.GROUPED:
        q = tl.arange(0, C.SHAPE[2] // formats.GROUP)
        j, there = row * columns // formats.GROUP + q, in_rows & (c0 + q * formats.GROUP < columns)
        j, there = tl.reshape(j, (e.numel // formats.GROUP,)), tl.reshape(there, (e.numel // formats.GROUP,))
    return e, j, mask, there


@triton.jit
def numbers_of(corner, n, strip, SIDE: tl.constexpr, ADDRESS: tl.constexpr, C: tl.constexpr):
    """Return where the numbers for rows, or for columns, of each of a tile's matrices begin, n of each.

    They are in the strip with this number, of those that begin at an ADDRESS of a SIDE.
    """
    row, _, _, _, m0, _, _ = corner
    side = tl.load(row + col.SIDES).to(tl.pointer_type(tl.int64)) + SIDE * col.SIDE
    matrix = tl.load(row + col.FIRST_MATRIX) + m0 + tl.arange(0, C.SHAPE[0])
    first = (strip * tl.load(side + col.SIDE_MATRICES) + matrix) * n
    return tl.load(side + ADDRESS).to(tl.pointer_type(C.COMPUTE)) + first[:, None]


@triton.jit
def lines_of(corner, C: tl.constexpr):
    """Return what is made of lines in all of a chunk: where that of rows begins, and that of columns."""
    _, _, rows, columns, _, _, c0 = corner
    by_row = numbers_of(corner, rows, 0, col.BY_ROWS, col.MADE, C)
    by_column, c = numbers_of(corner, columns, 0, col.BY_COLUMNS, col.MADE, C), c0 + tl.arange(0, C.SHAPE[2])
    return by_row, tl.load(by_column + c[None, :], existing(corner, c, columns, C), other=1.0)[:, None, :]


@triton.jit
def made(lines, corner, i, C: tl.constexpr):
    """Return what is made of the rows and columns of a tile."""
    by_row, column = lines
    r = corner[5] + i + tl.arange(0, C.SHAPE[1])
    return tl.load(by_row + r[None, :], existing(corner, r, corner[2], C), other=1.0)[:, :, None], column
