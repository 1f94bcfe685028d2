"""The tables of planes, and the memory for numbers that one kernel passes to another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.call import Tables
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.gpu.layout import CODES, OF_TORCH, Group, Kind, Layers, Sizes, full_shape, numbered
from layerwise.engines.gpu.planes import Plane, Tiling, plane_of, share_of, tiling_of
from layerwise.engines.gpu.stored import is_factored, kind_of

FOLDED = 64  # sums whose strips one program adds up
WARPS = 8  # of kernels that hold a tile


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

    def places(self, layers: int) -> np.ndarray:
        """Return the places of all sums, in numbers of their dtype."""
        found: np.ndarray = np.arange(layers * self.length) + self.first // self.dtype.itemsize
        return found

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

    def stretch(self, layers: int, length: int, strips: int, dtype: torch.dtype, apart: bool) -> Stretch:
        """Take room for sums: totals are float64, and a strip keeps the dtype that it is computed in.

        A sum of one strip is that strip, unless it has to lie `apart`.
        """
        first = strips_first = self.take(layers * strips * length * dtype.itemsize)
        if apart := apart or strips > 1:
            first = self.take(layers * length * torch.float64.itemsize)
        return Stretch(first, length, strips, strips_first, torch.float64 if apart else dtype, dtype)


class FactoredJob(NamedTuple):
    """The plane of a job, its tiles, and the places of its sums."""

    plane: Plane
    layers: int
    tiling: Tiling
    tiles: int  # of each layer
    sums: tuple[Stretch, Stretch]  # by rows, and by columns
    totals: Stretch  # of G and of R, of each matrix


class Programs(NamedTuple):
    """The programs of a launch: the row of a table and its part that each takes, and what they are compiled for."""

    pairs: Tensor
    constants: dict[str, Any]


class Factored:
    """The factored layers of a list of jobs: those with R and C."""

    def __init__(self, tables: Tables, arrays: Sequence[Sequence[Tensor]]) -> None:
        jobs, layers, sizes = tables.jobs, tables.layers, tables.sizes
        device = layers.table.device
        self._sizes, self._device = sizes, device
        room = Room()
        of = [j for j, job in enumerate(jobs) if is_factored(job)]
        self.by_job = {j: lay(jobs[j], arrays[j], layers.count(j), sizes, room) for j in of}
        self.store = tables.shared.room(room.taken // 8)
        planes, sides = self._planes(layers), self._sides(jobs)
        tiles = int(planes[:, at.TILES].sum())
        self.tiled = torch.zeros((1, tiles), dtype=torch.float64, device=device)  # Σp² of each tile, then Σu²
        self.starts = np.zeros((layers.n, 2), np.int64)  # of the tiles of each layer, and their number
        self.starts[planes[:, at.PLANE_LAYER]] = planes[:, [at.TILES_FIRST.value, at.TILES.value]]
        self.planes, self.sides = (torch.from_numpy(table).to(device) for table in (planes, sides))
        self.groups = list(self._groups(jobs, arrays, planes))
        self.of_rows, self.of_all = (list(self._programs(sides, rows)) for rows in (True, False))
        self.piles, self.of_sums, self.of_totals = self._piles()

    def _planes(self, layers: Layers) -> np.ndarray:
        tables = [_plane_rows(j, laid, layers) for j, laid in self.by_job.items()]
        rows = np.concatenate([np.zeros((0, at.PLANE.value), np.int64), *tables])
        rows[:, at.TILES_FIRST] = np.cumsum(rows[:, at.TILES]) - rows[:, at.TILES]
        rows[:, at.ROW_STRIPS :] += self.store.data_ptr()
        return rows

    def _sides(self, jobs: Sequence[Job]) -> np.ndarray:
        tables = [_side_rows(j, jobs[j], laid, which) for j, laid in self.by_job.items() for which in (0, 1)]
        rows = np.concatenate([np.zeros((0, at.SIDE.value), np.int64), *tables])
        rows[:, at.FACTORS :] += self.store.data_ptr()
        return rows

    def _groups(self, jobs: Sequence[Job], arrays: Sequence[Sequence[Tensor]], planes: np.ndarray) -> Iterator[Group]:
        """Yield the layers of each kind that have the same tiles."""
        kinds: dict[int, tuple[Kind, Tiling]] = {}
        for j, laid in self.by_job.items():
            kinds[j] = kind_of(jobs[j], arrays[j]), laid.tiling
        for kind, tiling in dict.fromkeys(kinds.values()):
            own = np.array([j for j in kinds if kinds[j] == (kind, tiling)])
            rows = np.flatnonzero(np.isin(planes[:, at.PLANE_JOB], own))
            pairs = numbered(rows, planes[rows, at.TILES], self._device)
            if len(pairs):
                constants = kind.constants() | {"DEPTH": self._sizes.tiles, "num_warps": WARPS}
                constants |= dict(
                    zip(("MATRICES", "ROWS", "COLUMNS", "VECTOR"), (*tiling.tile, tiling.vector), strict=True)
                )
                yield Group(kind, own, pairs, len(pairs), constants)

    def _programs(self, sides: np.ndarray, rows: bool) -> Iterator[Programs]:
        """Yield the programs that take the statistics of all sides, or those of R."""
        shapes = np.array([self._share(side) for side in sides], np.int64).reshape(-1, 2)
        taken = sides[:, at.OF_ROWS] == 1 if rows else np.full(len(sides), True)
        for matrices, statistics in dict.fromkeys(tuple(map(int, shape)) for shape in shapes[taken]):
            own = np.flatnonzero(taken & (shapes == (matrices, statistics)).all(1))
            lengths = sides[own, at.SIDE_MATRICES], sides[own, at.SIDE_ENTRIES]
            parts = -(-lengths[0] // matrices) * np.maximum(1, -(-lengths[1] // statistics))
            if parts.sum():
                of = {"MATRICES": matrices, "ENTRIES": statistics, "num_warps": WARPS}
                yield Programs(numbered(own, parts, self._device), of)

    def _share(self, side: np.ndarray) -> tuple[int, ...]:
        return share_of(self.by_job[int(side[at.SIDE_JOB])].plane, int(side[at.SIDE_ENTRIES]), self._sizes)

    def _piles(self) -> tuple[Tensor, list[Programs], list[Programs]]:
        """Return the table of sums with several strips, and the launches that add up sums, and those for totals."""
        piles: list[tuple[int, ...]] = []
        folds: tuple[list[Programs], list[Programs]] = [], []
        for which, launches in enumerate(folds):
            for dtype in (torch.float32, torch.float64):
                start = len(piles)
                for laid in self.by_job.values():
                    for stretch in (laid.sums, (laid.totals,))[which]:
                        if stretch.strips_dtype is dtype:
                            piles += _piles_of(stretch, laid.layers, self.store.data_ptr())
                parts = np.array([-(-pile[at.PILE_LENGTH] // FOLDED) for pile in piles[start:]], np.int64)
                pairs = numbered(np.arange(start, len(piles)), parts, self._device)
                if len(pairs):
                    of = {"DTYPE": OF_TORCH[dtype], "DEPTH": self._sizes.strips, "LENGTH": FOLDED}
                    launches.append(Programs(pairs, of))
        table = torch.tensor(piles or [(0,) * at.PILE.value], dtype=torch.int64, device=self._device)
        return table, *folds


def lay(job: Job, arrays: Sequence[Tensor], layers: int, sizes: Sizes, room: Room) -> FactoredJob:
    """Cut a job's plane into tiles, and take room for its sums."""
    plane, tiling = plane_of(job), tiling_of(job, arrays, sizes)
    stack, under, over = tiling.tiles(plane, sizes.tiles)
    compute = torch.float64 if job.p.dtype is torch.float64 else torch.float32
    # What others complete is as exact on every rank, also on one whose shard is small.
    shared = job.shape is not None
    one = plane.rows == 1 and job.state.exp_avg_sq_row.dtype is not torch.float64 and not shared
    strips = max(1, -(-plane.rows // share_of(plane, plane.rows, sizes)[1]))
    sums = (
        room.stretch(layers, plane.matrices * plane.rows, over, compute, shared),
        room.stretch(layers, plane.matrices * plane.columns, under, compute, shared),
    )
    totals = room.stretch(layers, 2 * plane.matrices, strips, compute if one else torch.float64, shared)
    return FactoredJob(plane, layers, tiling, stack * under * over, sums, totals)


def _plane_rows(j: int, laid: FactoredJob, layers: Layers) -> np.ndarray:
    n, (rows, columns) = np.arange(laid.layers), laid.sums
    values = {
        at.PLANE_LAYER: layers.of(j).start + n,
        at.PLANE_JOB: j,
        at.PLANE_BASE: n * prod(laid.plane),
        at.TILES: laid.tiles,
        at.MATRICES: laid.plane.matrices,
        at.ROWS: laid.plane.rows,
        at.COLUMNS: laid.plane.columns,
        at.ROW_STRIPS: rows.strips_of(n),
        at.COLUMN_STRIPS: columns.strips_of(n),
    }
    return _rows(laid.layers, at.PLANE, values)


def _side_rows(j: int, job: Job, laid: FactoredJob, which: int) -> np.ndarray:
    """Return the rows of one job's statistics by rows (0) or by columns (1)."""
    full, n, plane = full_shape(job), np.arange(laid.layers), laid.plane
    counts = [max(1, prod(full[d] for d in group)) for group in job.h.factored]
    stored = (job.state.exp_avg_sq_row, job.state.exp_avg_sq_col)[which]
    sums, totals, entries = laid.sums[which], laid.totals, plane[1 + which]
    values = {
        at.SIDE_JOB: j,
        at.OF_ROWS: which == 0,
        at.SIDE_MATRICES: plane.matrices,
        at.SIDE_ENTRIES: entries,
        at.STORED_AS: CODES[stored.dtype],
        at.FACTORS_AS: CODES[sums.strips_dtype],
        at.SUMS_AS: CODES[sums.dtype],
        at.TOTALS_AS: CODES[totals.dtype],
        at.SUMMED: counts[1 - which],
        at.FULL_ROWS: counts[0],
        at.FULL_COLUMNS: counts[1],
        at.STORED: stored.data_ptr() + n * plane.matrices * entries * stored.element_size(),
        at.FACTORS: sums.strips_of(n),
        at.SUMS: sums.of(n),
        at.TOTALS: totals.of(n),
        at.TOTAL_STRIPS: totals.strips_of(n),
    }
    return _rows(laid.layers, at.SIDE, values)


def _rows(n: int, columns: Any, values: Mapping[Any, Any]) -> np.ndarray:
    """Return rows of a table with these columns."""
    rows = np.zeros((n, columns.value), np.int64)
    for column, numbers in values.items():
        rows[:, column] = numbers
    return rows


def _piles_of(stretch: Stretch, layers: int, base: int) -> Iterator[tuple[int, ...]]:
    if stretch.first != stretch.strips_first:
        for i in range(layers):
            yield base + stretch.strips_of(i), stretch.strips, base + stretch.of(i), stretch.length
