"""Layers in tiles, and Adafactor where V is factored (rules/adafactor.py), cut where the rule yields:

    strips:  Σ(g²) by rows and by columns, Σp²             → fold, total (all of these: statistics.py)
    renew:   R ← b2·R + a2·(mean + eps1), C likewise       → 1/√(R/mean(R)), 1/√C; their roots where eps1 clamps
    measure: Σu²,  u = g·row·column                        → the program's answers
    apply:   the program's, with u in the place of V and of the term that it has for it

A layer is a stack of matrices in one stretch of memory, or a matrix whose rows end within groups of 8 bits. Its blocks
are tiles of so many matrices, rows and columns, and a chunk is a tile and those below it. Its sums along rows are one
of several strips of those sums, which are added up afterwards, always in the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import formats, parts
from layerwise.engines.gpu.kernels import tables as col
from layerwise.engines.gpu.printed.adafactor import LEAST


@triton.jit
def chunk_of(layers, chunks, c, C: tl.constexpr):
    """Return chunk c's layer, job, first element, rows, place of its sums, and its corner.

    That is the layer's row, the layer's sizes, and the first matrix, row and column. With a VECTOR, the compiler
    recognizes of which numbers it is a divisor.
    """
    layer, part = parts.part_of(chunks, c)
    row = layers + layer.to(tl.int64) * col.LAYER
    matrices, rows = tl.load(row + col.MATRICES).to(tl.int32), tl.load(row + col.ROWS).to(tl.int32)
    columns = tl.load(row + col.COLUMNS).to(tl.int32) // C.VECTOR * C.VECTOR
    down, across = tl.maximum(tl.cdiv(rows, C.CHUNK), 1), tl.maximum(tl.cdiv(columns, C.SHAPE[2]), 1)
    m, r, c = part // across // down * C.SHAPE[0], part // across % down * C.CHUNK, part % across * C.SHAPE[2]
    begin = tl.load(row + col.BASE) + (m.to(tl.int64) * rows + r) * columns + c
    place = tl.load(row + col.FIRST) + part
    corner = row, matrices, rows, columns, m, r, c
    return layer, tl.load(row + col.JOB), begin, tl.minimum(rows - r, C.CHUNK), place, corner


@triton.jit
def group_of(begin, corner):
    """Return the first group of a chunk in its tensor. Rows have whole groups, of which the last may lack elements."""
    columns, c0 = tl.maximum(corner[3], 1), corner[6]
    return begin // columns * tl.cdiv(columns, formats.GROUP) + c0 // formats.GROUP


@triton.jit
def block_of(corner, i, C: tl.constexpr):
    """Return a tile's elements and groups, counted from the chunk's first, and the masks of the existing ones."""
    _, matrices, rows, columns, m0, r0, c0 = corner
    m, r, c = tl.arange(0, C.SHAPE[0]), i + tl.arange(0, C.SHAPE[1]), tl.arange(0, C.SHAPE[2])
    row = (m.to(tl.int64)[:, None] * rows + r[None, :])[:, :, None]
    in_rows = ((m0 + m < matrices)[:, None] & (r0 + r < rows)[None, :])[:, :, None]
    e, mask = row * columns + c[None, None, :], in_rows & (c0 + c < columns)[None, None, :]
    j, there = e, mask
    if C.GROUPED:
        q = tl.arange(0, C.SHAPE[2] // formats.GROUP)
        j, there = row * tl.cdiv(columns, formats.GROUP) + q, in_rows & (c0 + q * formats.GROUP < columns)
        j, there = tl.reshape(j, (e.numel // formats.GROUP,)), tl.reshape(there, (e.numel // formats.GROUP,))
    return e, j, mask, there


@triton.jit
def along(corner, x, n, strip, ADDRESS: tl.constexpr, C: tl.constexpr):
    """Return the places of numbers for a tile's rows, or its columns, which are x of n, and the mask of existing ones.

    They are in the strip with this number, of those that begin at an address of the layer's row.
    """
    row, matrices, _, _, m0, _, _ = corner
    m = m0 + tl.arange(0, C.SHAPE[0])
    at = tl.load(row + ADDRESS).to(tl.pointer_type(C.COMPUTE))
    first = (strip * tl.load(row + col.ALL_MATRICES) + m) * n
    return at + first[:, None] + x[None, :], (m < matrices)[:, None] & (x < n)[None, :]


@triton.jit
def factors_of(corner, params, C: tl.constexpr):
    """Return what u is made with in all of a chunk: the factors of columns, and the least product of two factors."""
    _, _, _, columns, _, _, c0 = corner
    at, mask = along(corner, c0 + tl.arange(0, C.SHAPE[2]), columns, 0, col.COLUMN_FACTORS, C)
    column = tl.load(at, mask, other=1.0)[:, None, :]
    return column, tl.load(parts.coefficients_of(params) + col.OWN + LEAST).to(C.COMPUTE)


@triton.jit
def update(g, factors, corner, i, C: tl.constexpr):
    """Return u of a tile."""
    _, _, rows, _, _, r0, _ = corner
    column, least = factors
    at, mask = along(corner, r0 + i + tl.arange(0, C.SHAPE[1]), rows, 0, col.ROW_FACTORS, C)
    row = tl.load(at, mask, other=1.0)[:, :, None]
    return g / parts.at_least(row * column, least) if C.CLAMPS else g * row * column


@triton.jit
def updates(k, p, g, s):
    """Return, for a program's terms, u, which `update` has put in the place of V."""
    return s[0], s[0]
