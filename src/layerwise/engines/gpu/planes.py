"""Layers with a factored V as stacks of matrices, and the tiles that they are cut into."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, prod
from typing import NamedTuple

import numpy as np
from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.gpu.layout import Dim, Offsets, P, aligned, merged, way_of

ROW_STATE, COL_STATE = at.OPERANDS.value, at.OPERANDS.value + 1  # further operands of planes
LENGTHS = (1, 4, 8, 16, 32, 64, 128)  # of the sides of tiles; a longer side takes all the room that is left
WIDEST_STACK = 16
MOST = 1 << 30  # along an axis, so that its numbers fit into 32 bits


class Traits(NamedTuple):
    """Settings that Adafactor's kernels are compiled for."""

    factored: bool
    scales: bool  # by the weights' own size
    momentum: bool
    clamps: bool


def traits_of(job: Job) -> Traits:
    h = job.h
    return Traits(bool(h.factored), bool(h.scale_parameter), job.state.exp_avg is not None, h.eps_mode == "clamp")


class Plane(NamedTuple):
    """The layout of one job's layers: matrices of lines of entries."""

    bases: list[Offsets]
    axes: tuple[list[Dim], list[Dim], list[Dim]]
    dims: tuple[tuple[int, ...], ...]  # the dimensions of p that each axis is made of, the nearest in memory last
    lines_are_rows: bool

    @property
    def sizes(self) -> tuple[int, int, int]:
        matrices, lines, entries = (prod(dim.size for dim in axis) for axis in self.axes)
        return matrices, lines, entries


def operands_of(job: Job, arrays: Sequence[Tensor]) -> list[Tensor]:
    return [*arrays, job.state.exp_avg_sq_row, job.state.exp_avg_sq_col]


def plane_of(job: Job, arrays: Sequence[Tensor]) -> Plane:
    """Return the plane of a job with these operands."""
    rows, cols = job.h.factored
    arrays = operands_of(job, arrays)

    def of(d: int) -> Dim:
        strides = [a.stride(d) for a in arrays]
        for which, gone in ((ROW_STATE, cols), (COL_STATE, rows)):
            strides[which] = 0 if d in gone else strides[which]
        return Dim(job.p.shape[d], tuple(strides))

    def near(dims: Sequence[int]) -> float:
        return min((of(d).strides[P] for d in dims if job.p.shape[d] != 1), default=np.inf)

    rest = [d for d in range(job.p.ndim) if d not in (*rows, *cols, *job.block_dims)]
    dims = (rest, rows, cols) if near(cols) <= near(rows) else (rest, cols, rows)
    ordered = tuple(tuple(sorted(axis, key=lambda d: -of(d).strides[P])) for axis in dims)
    matrices, lines, entries = (merged([of(d) for d in axis]) for axis in ordered)
    return Plane(way_of(job, arrays).bases, (matrices, lines, entries), ordered, dims[1] is rows)


def tile_of(plane: Plane, size: int) -> tuple[int, int, int]:
    """Return the matrices, lines and entries of a tile: powers of two from a short list, with this product."""
    matrices, lines, entries = plane.sizes
    inner = plane.axes[0] and plane.axes[2] and plane.axes[0][-1].strides[P] < plane.axes[2][-1].strides[P]
    room = size // (_length(matrices, min(WIDEST_STACK, size)) if inner else 1)
    along = _length(entries, room // _length(lines, max(1, isqrt(room) // 2)))
    down = _length(lines, room // along)
    return size // (down * along), down, along


def _length(n: int, most: int) -> int:
    return min(next((length for length in LENGTHS if length >= n), most), most)


def vector_of(plane: Plane, arrays: Sequence[Tensor]) -> int:
    """Return how many elements can be moved at once if gradients are aligned, or 1."""
    n = 16 // min(a.element_size() for a in arrays)
    if any(len(axis) > 1 for axis in plane.axes) or not plane.axes[2] or not aligned(arrays, plane.bases):
        return 1
    (entries,), others = plane.axes[2], [*plane.axes[0], *plane.axes[1]]
    own = slice(len(arrays))
    even = entries.size % n == 0 and all(stride % n == 0 for dim in others for stride in dim.strides[own])
    return n if even and set(entries.strides[own]) == {1} else 1
