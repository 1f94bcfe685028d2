"""Layers with state by rows and by columns, in tiles.

The first round sums by rows, columns and matrices; all later passes read what the program makes of these sums
(statistics.py). A layer is a stack of matrices in one stretch of memory. A tile has a fixed number of matrices, rows
and columns, and a chunk is a tile with those below it. A chunk sums only its own entries of each row, so these sums are
a strip among several, which are added up afterwards, always in the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import formats
from layerwise.engines.gpu.kernels import tables as col


@triton.jit
def tile_corner(row, part, C: tl.constexpr):
    """Return the offset of a part in its layer, the number of its rows, and its corner.

    A corner is the layer's row in the table, the layer's sizes, and the part's first matrix, row and column. VECTOR
    tells the compiler what the number of columns is a multiple of.
    """
    matrices, rows = tl.load(row + col.MATRICES).to(tl.int32), tl.load(row + col.ROWS).to(tl.int32)
    columns = tl.load(row + col.COLUMNS).to(tl.int32) // C.VECTOR * C.VECTOR
    down, across = tl.maximum(tl.cdiv(rows, C.CHUNK), 1), tl.maximum(tl.cdiv(columns, C.SHAPE[2]), 1)
    m, r, c = part // across // down * C.SHAPE[0], part // across % down * C.CHUNK, part % across * C.SHAPE[2]
    start = (m.to(tl.int64) * rows + r) * columns + c
    return start, tl.minimum(rows - r, C.CHUNK), (row, matrices, rows, columns, m, r, c)


@triton.jit
def existing(corner, x, n, C: tl.constexpr):
    """Return the mask of the tile's rows (or columns) x that exist, of n in each matrix."""
    m = corner[4] + tl.arange(0, C.SHAPE[0])
    return (m < corner[1])[:, None] & (x < n)[None, :]


@triton.jit
def block_of(corner, i, C: tl.constexpr):
    """Return the offsets of a tile's elements and groups in their chunk, and the masks of those that exist."""
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
def line_addresses(corner, n, strip, SIDE: tl.constexpr, ADDRESS: tl.constexpr, C: tl.constexpr):
    """Return the addresses of the n numbers of each of a tile's matrices, one for each row or for each column.

    SIDE says whether of rows or columns, ADDRESS which numbers, and `strip` which strip of them.
    """
    row, _, _, _, m0, _, _ = corner
    side = tl.load(row + col.SIDES).to(tl.pointer_type(tl.int64)) + SIDE * col.SIDE
    matrix = tl.load(row + col.FIRST_MATRIX) + m0 + tl.arange(0, C.SHAPE[0])
    first = (strip * tl.load(side + col.SIDE_MATRICES) + matrix) * n
    return tl.load(side + ADDRESS).to(tl.pointer_type(C.COMPUTE)) + first[:, None]


@triton.jit
def locate_row_column_results(corner, C: tl.constexpr):
    """Return what the program made of a chunk's lines: the address of the rows' numbers, and the columns' numbers."""
    _, _, rows, columns, _, _, c0 = corner
    by_row = line_addresses(corner, rows, 0, col.BY_ROWS, col.MADE, C)
    by_column, c = line_addresses(corner, columns, 0, col.BY_COLUMNS, col.MADE, C), c0 + tl.arange(0, C.SHAPE[2])
    return by_row, tl.load(by_column + c[None, :], existing(corner, c, columns, C), other=1.0)[:, None, :]


@triton.jit
def made(lines, corner, i, C: tl.constexpr):
    """Return what the program made of a tile's rows and columns."""
    by_row, column = lines
    r = corner[5] + i + tl.arange(0, C.SHAPE[1])
    return tl.load(by_row + r[None, :], existing(corner, r, corner[2], C), other=1.0)[:, :, None], column
