"""The tables of planes, and the memory for the numbers that one kernel leaves to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.call import Sizes, Tables
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.gpu.kernels.statistics import WIDE_FACTORS, WIDE_SUMS, WIDE_TOTALS
from layerwise.engines.gpu.layout import Dim, Group, Kind, Layers, numbered
from layerwise.engines.gpu.planes import (
    COL_STATE,
    MOST,
    ROW_STATE,
    Plane,
    operands_of,
    plane_of,
    tile_of,
    traits_of,
    vector_of,
)

FEW = (
    16  # statistics of each matrix at a time, where a program takes several matrices; they may have four times as many
)
FOLDED = 64  # sums whose strips one program adds up
CODES = {
    torch.float32: at.FLOAT32.value,
    torch.float64: at.FLOAT64.value,
    torch.bfloat16: at.BFLOAT16.value,
    torch.float16: at.FLOAT16.value,
}


class Stretch(NamedTuple):
    """A row of numbers for each layer of a job: the sum of several strips, or the only strip itself."""

    first: int  # in bytes, as all places are
    length: int
    strips: int
    strips_first: int
    dtype: torch.dtype
    strips_dtype: torch.dtype

    def of(self, layer: Any) -> Any:
        return self.first + layer * self.length * self.dtype.itemsize

    def strips_of(self, layer: Any) -> Any:
        return self.strips_first + layer * self.strips * self.length * self.strips_dtype.itemsize


class Room:
    """Consecutive bytes, given out in multiples of eight."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self, n: int) -> int:
        first = self.taken
        self.taken += -(-n // 8) * 8
        return first

    def stretch(self, layers: int, length: int, strips: int, dtype: torch.dtype) -> Stretch:
        """Take room for sums: totals are float64, and a strip keeps the dtype that it is computed in."""
        first = strips_first = self.take(layers * strips * length * dtype.itemsize)
        if strips > 1:
            first = self.take(layers * length * torch.float64.itemsize)
        return Stretch(first, length, strips, strips_first, torch.float64 if strips > 1 else dtype, dtype)


class Tiling(NamedTuple):
    """The division of a plane into tiles."""

    tile: tuple[int, int, int]
    vector: int  # elements that can be moved at once


class FactoredJob(NamedTuple):
    """The plane of a job, its tiles, and the places of its sums."""

    plane: Plane
    tiling: Tiling
    tiles: int  # of each layer
    sums: tuple[Stretch, Stretch]  # along lines, and along entries
    totals: Stretch  # of G and of R, of each matrix


class Programs(NamedTuple):
    """The programs of a launch: the row of a table and the part of it that each takes, and the size of a part."""

    pairs: Tensor
    shape: tuple[int, int]


class Fold(NamedTuple):
    """The programs of a launch of `fold`, which adds up strips of one dtype."""

    programs: Programs
    dtype: torch.dtype


class Factored:
    """The factored layers of a list of jobs: those with R and C."""

    def __init__(self, tables: Tables, arrays: Sequence[Sequence[Tensor]]) -> None:
        jobs, layers, sizes = tables.jobs, tables.layers, tables.sizes
        device = layers.table.device
        self._sizes, self._device = sizes, device
        room = Room()
        of = [j for j, job in enumerate(jobs) if job.h.factored]
        self.by_job = {j: lay(jobs[j], arrays[j], sizes, room) for j in of}
        self.store = tables.shared.room(room.taken // 8)
        planes, sides = self._planes(layers), self._sides(jobs, arrays)
        tiles = int(planes[:, at.TILES.value].sum())
        self.tiled = torch.zeros((2, tiles), dtype=torch.float64, device=device)  # Σp² and Σu² of each tile
        plane_of_layer = np.full(layers.n, -1)
        plane_of_layer[planes[:, at.PLANE_LAYER.value]] = np.arange(len(planes))
        made = (planes, sides, plane_of_layer)
        self.planes, self.sides, self.plane_of = (torch.from_numpy(table).to(device) for table in made)
        self.groups = list(self._groups(jobs, arrays, planes))
        self.of_rows, self.of_all = (list(self._programs(sides, rows)) for rows in (True, False))
        self.piles, self.of_sums, self.of_totals = self._piles()

    def _planes(self, layers: Layers) -> np.ndarray:
        tables = [_plane_rows(j, laid, layers) for j, laid in self.by_job.items()]
        rows = np.concatenate([np.zeros((0, at.PLANE.value), np.int64), *tables])
        rows[:, at.TILES_FIRST.value] = np.cumsum(rows[:, at.TILES.value]) - rows[:, at.TILES.value]
        places = at.LINE_SUMS, at.ENTRY_SUMS, at.LINE_FACTORS, at.ENTRY_FACTORS
        rows[:, [place.value for place in places]] += self.store.data_ptr()
        return rows

    def _sides(self, jobs: Sequence[Job], arrays: Sequence[Sequence[Tensor]]) -> np.ndarray:
        tables = [
            _side_rows(j, jobs[j], laid, operands_of(jobs[j], arrays[j]), which)
            for j, laid in self.by_job.items()
            for which in (0, 1)
        ]
        rows = np.concatenate([np.zeros((0, at.SIDE.value), np.int64), *tables])
        places = at.FACTORS, at.SUMS, at.TOTALS, at.TOTAL_STRIPS
        rows[:, [place.value for place in places]] += self.store.data_ptr()
        return rows

    def _groups(
        self, jobs: Sequence[Job], arrays: Sequence[Sequence[Tensor]], planes: np.ndarray
    ) -> Iterator[tuple[Group, Tiling]]:
        """Yield the layers of each kind that have the same tiles."""
        kinds: dict[int, tuple[Kind, Tiling]] = {}
        for j, laid in self.by_job.items():
            kind = Kind(tuple(a.dtype for a in arrays[j]), False, laid.tiling.vector > 1, traits_of(jobs[j]))
            kinds[j] = kind, laid.tiling
        for kind, tiling in dict.fromkeys(kinds.values()):
            own = np.array([j for j in kinds if kinds[j] == (kind, tiling)])
            rows = np.flatnonzero(np.isin(planes[:, at.PLANE_JOB.value], own))
            pairs = numbered(rows, planes[rows, at.TILES.value], self._device)
            if len(pairs):
                yield Group(kind, own, pairs, len(pairs)), tiling

    def _programs(self, sides: np.ndarray, rows: bool) -> Iterator[Programs]:
        """Yield the programs that take the statistics of all sides, or those of R."""
        for few in (True, False):
            shape = share_of(0 if few else MOST, self._sizes)
            taken = (sides[:, at.SIDE_ENTRIES.value] <= 4 * FEW) == few
            if rows:
                taken &= sides[:, at.OF_ROWS.value] == 1
            own = np.flatnonzero(taken)
            matrices, entries = sides[own, at.SIDE_MATRICES.value], sides[own, at.SIDE_ENTRIES.value]
            parts = -(-matrices // shape[0]) * np.maximum(1, -(-entries // shape[1]))
            if parts.sum():
                yield Programs(numbered(own, parts, self._device), shape)

    def _piles(self) -> tuple[Tensor, list[Fold], list[Fold]]:
        """Return the table of sums with several strips, and the launches that add up sums, and those for totals."""
        piles: list[tuple[int, ...]] = []
        folds: tuple[list[Fold], list[Fold]] = [], []
        for which, launches in enumerate(folds):
            for dtype in (torch.float32, torch.float64):
                start = len(piles)
                for laid in self.by_job.values():
                    for stretch in (laid.sums, (laid.totals,))[which]:
                        if stretch.strips_dtype is dtype:
                            piles += _piles_of(stretch, len(laid.plane.bases), self.store.data_ptr())
                parts = np.array([-(-pile[at.PILE_LENGTH.value] // FOLDED) for pile in piles[start:]], np.int64)
                pairs = numbered(np.arange(start, len(piles)), parts, self._device)
                if len(pairs):
                    launches.append(Fold(Programs(pairs, (self._sizes.strips, FOLDED)), dtype))
        table = torch.tensor(piles or [(0,) * at.PILE.value], dtype=torch.int64, device=self._device)
        return table, *folds


def lay(job: Job, arrays: Sequence[Tensor], sizes: Sizes, room: Room) -> FactoredJob:
    """Cut a job's plane into tiles, and take room for its sums."""
    plane = plane_of(job, arrays)
    (matrices, lines, entries), layers = plane.sizes, len(plane.bases)
    tiling = tiling_of(plane, arrays, sizes)
    m, down, across = tiling.tile
    over, under = max(1, -(-entries // across)), max(1, -(-lines // (down * sizes.tiles)))
    lengths = matrices * lines, matrices * entries
    rows = lines if plane.lines_are_rows else entries
    compute = torch.float64 if job.p.dtype is torch.float64 else torch.float32
    one = rows == 1 and operands_of(job, arrays)[ROW_STATE].dtype is not torch.float64
    return FactoredJob(
        plane,
        tiling,
        over * under * max(1, -(-matrices // m)),
        (room.stretch(layers, lengths[0], over, compute), room.stretch(layers, lengths[1], under, compute)),
        room.stretch(
            layers, 2 * matrices, max(1, -(-rows // share_of(rows, sizes)[1])), compute if one else torch.float64
        ),
    )


def tiling_of(plane: Plane, arrays: Sequence[Tensor], sizes: Sizes) -> Tiling:
    """Choose the tiles of a plane."""
    vector = vector_of(plane, arrays)
    # Addresses of single elements take as many registers as the elements.
    return Tiling(tile_of(plane, sizes.tile if vector > 1 else sizes.tile // 4), vector)


def share_of(entries: int, sizes: Sizes) -> tuple[int, int]:
    """Return how many matrices, and statistics of each, a program takes of matrices with so many entries."""
    return (sizes.entries // FEW, FEW) if entries <= 4 * FEW else (1, sizes.entries)


def _plane_rows(j: int, laid: FactoredJob, layers: Layers) -> np.ndarray:
    of = np.arange(layers.of(j).start, layers.of(j).stop)
    rows, n = np.zeros((len(of), at.PLANE.value), np.int64), np.arange(len(of))
    rows[:, at.PLANE_LAYER.value], rows[:, at.PLANE_JOB.value], rows[:, at.TILES.value] = of, j, laid.tiles
    rows[:, at.MATRICES.value : at.MATRICES.value + 3] = laid.plane.sizes
    both = (at.LINE_SUMS, at.LINE_FACTORS), (at.ENTRY_SUMS, at.ENTRY_FACTORS)
    for columns, stretch in zip(both, laid.sums, strict=True):
        for column in columns:
            rows[:, column.value] = stretch.strips_of(n)
    own = slice(at.OPERANDS.value)
    for i, base in enumerate(laid.plane.bases):
        rows[i, at.PLANE_BASE.value : at.PLANE_BASE.value + at.OPERANDS.value] = base[own]
    for column, axis in zip((at.MATRIX_AXIS, at.LINE_AXIS, at.ENTRY_AXIS), laid.plane.axes, strict=True):
        rows[:, column.value : column.value + at.AXIS.value] = _axis(axis, own)
    return rows


def _side_rows(j: int, job: Job, laid: FactoredJob, arrays: Sequence[Tensor], which: int) -> np.ndarray:
    """Return the rows of one job's statistics along lines (0) or along entries (1)."""
    plane, of_rows = laid.plane, (which == 0) == laid.plane.lines_are_rows
    rows, n = np.zeros((len(plane.bases), at.SIDE.value), np.int64), np.arange(len(plane.bases))
    full_shape = job.p.shape if job.shape is None else job.shape
    counts = [max(1, prod(full_shape[d] for d in group)) for group in job.h.factored]
    k = ROW_STATE if of_rows else COL_STATE
    stored, sums, totals, matrices = arrays[k], laid.sums[which], laid.totals, plane.sizes[0]
    dtypes = (WIDE_FACTORS, sums.strips_dtype), (WIDE_SUMS, sums.dtype), (WIDE_TOTALS, totals.dtype)
    columns = {
        at.SIDE_JOB.value: j,
        at.OF_ROWS.value: of_rows,
        at.SIDE_MATRICES.value: matrices,
        at.SIDE_ENTRIES.value: plane.sizes[1 + which],
        at.WIDE.value: sum(bit.value for bit, dtype in dtypes if dtype is torch.float64),
        at.STORED.value: [stored.data_ptr() + base[k] * stored.element_size() for base in plane.bases],
        at.STORED_AS.value: CODES[stored.dtype],
        at.FACTORS.value: sums.strips_of(n),
        at.SUMS.value: sums.of(n),
        at.TOTALS.value: totals.of(n),
        at.TOTAL_STRIPS.value: totals.strips_of(n),
        at.SUMMED.value: counts[1] if of_rows else counts[0],
        at.ROWS.value: counts[0],
        at.COLUMNS.value: counts[1],
    }
    for column, values in columns.items():
        rows[:, column] = values
    for column, axis in ((at.SIDE_MATRIX_AXIS, plane.axes[0]), (at.SIDE_AXIS, plane.axes[1 + which])):
        rows[:, column.value : column.value + at.AXIS.value] = _axis(axis, slice(k, k + 1))
    return rows


def _axis(dims: Sequence[Dim], operands: slice) -> np.ndarray:
    """Return an axis in the kernels' form. No dimensions are one of size 1; an empty one is never walked along."""
    row = np.zeros(at.AXIS.value, np.int64)
    row[at.AXIS_DIMS.value] = max(1, len(dims))
    for d, dim in enumerate(reversed(dims)):
        size, stride = (column.value + d * at.AXIS_DIM.value for column in (at.AXIS_SIZE, at.AXIS_STRIDE))
        row[size] = max(1, dim.size)
        row[stride : stride + len(dim.strides[operands])] = dim.strides[operands]
    return row


def _piles_of(stretch: Stretch, layers: int, base: int) -> Iterator[tuple[int, ...]]:
    if stretch.strips > 1:
        for i in range(layers):
            yield base + stretch.strips_of(i), stretch.strips, base + stretch.of(i), stretch.length
