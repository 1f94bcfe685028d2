"""Adafactor where V is factored (rules/adafactor.py), cut where the rule yields.

    strips:  Σ(g²) by rows and by columns, Σp²             → fold, total (all of these: statistics.py)
    renew:   R ← b2·R + a2·(mean + eps1), C likewise       → 1/√(R/mean(R)), 1/√C; their roots where eps1 clamps
    measure: Σu²,  u = g·row·column                        → the program's answers
    apply:   the program's, with u in the place of V and of the term that it has for it

A layer is a stack of matrices in one stretch of memory. Its blocks are tiles of so many matrices, rows and columns, and
a chunk is a tile and those below it. Its sums along rows are one of several strips of those sums, which are added up
afterwards, always in the same order.
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
def block_of(corner, i, C: tl.constexpr):
    """Return a tile's elements and groups, counted from the chunk's first, and the masks of the existing ones."""
    _, matrices, rows, columns, m0, r0, c0 = corner
    m, r, c = tl.arange(0, C.SHAPE[0]), i + tl.arange(0, C.SHAPE[1]), tl.arange(0, C.SHAPE[2])
    mask = (m0 + m < matrices)[:, None, None] & (r0 + r < rows)[None, :, None] & (c0 + c < columns)[None, None, :]
    first = (m.to(tl.int64)[:, None] * rows + r[None, :])[:, :, None] * columns
    e = first + c[None, None, :]
    j, there = e, mask
    if formats.CODES << 10 & C.FORMATS:
        j = tl.min(tl.reshape(e, (e.numel // formats.GROUP, formats.GROUP)), 1) // formats.GROUP
        there = tl.max(tl.reshape(mask.to(tl.int32), (e.numel // formats.GROUP, formats.GROUP)), 1) > 0
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
def walk_of(corner, params, C: tl.constexpr):
    """Return what the blocks of a chunk are found by, and what u is made with in all of them."""
    _, _, _, columns, _, _, c0 = corner
    at, mask = along(corner, c0 + tl.arange(0, C.SHAPE[2]), columns, 0, col.COLUMN_FACTORS, C)
    column = tl.load(at, mask, other=1.0)[:, None, :]
    return corner, column, tl.load(parts.coefficients_of(params) + col.OWN + LEAST).to(C.COMPUTE)


@triton.jit
def update(g, walk, i, C: tl.constexpr):
    """Return u of a tile."""
    corner, column, least = walk
    _, _, rows, _, _, r0, _ = corner
    at, mask = along(corner, r0 + i + tl.arange(0, C.SHAPE[1]), rows, 0, col.ROW_FACTORS, C)
    row = tl.load(at, mask, other=1.0)[:, :, None]
    return g / parts.at_least(row * column, least) if C.CLAMPS else g * row * column


@triton.jit
def updates(k, p, g, s):
    """Return, for a program's terms, u, which `update` has put in the place of V."""
    return s[0], s[0]
