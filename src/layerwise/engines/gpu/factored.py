"""Layers with a factored V: the tables of their statistics, and the memory for numbers between launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.gpu.kinds import WARPS
from layerwise.engines.gpu.layers import Layers, numbered
from layerwise.engines.gpu.layout import CODES, Sizes, full_shape
from layerwise.engines.gpu.planes import chunks_along, plane_of

FOLDED = 64  # sums whose strips one program adds up
SMALL = 16  # row sums of a matrix, of which one program adds up several


class Side(NamedTuple):
    """The sums of a job's matrices, of all layers, by rows or by columns."""

    matrices: int
    entries: int  # sums of each matrix
    strips: int  # that each sum is added up of
    dtype: torch.dtype  # of strips and factors
    strips_at: int  # bytes of the room, where strips begin
    factors_at: int  # and factors
    sums_at: int  # the place of the first among all sums

    @property
    def length(self) -> int:
        return self.matrices * self.entries


class Programs(NamedTuple):
    """The programs of a launch: the side and its part that each takes, and what they are compiled for."""

    pairs: Tensor
    constants: dict[str, Any]


class Room:
    """Consecutive places, given out in multiples of eight."""

    def __init__(self, taken: int = 0) -> None:
        self.taken = taken

    def take(self, n: int) -> int:
        first = self.taken
        self.taken += -(-n // 8) * 8
        return first


class Factored:
    """The factored jobs of a list."""

    def __init__(self, jobs: Sequence[Job], layers: Layers, sizes: Sizes, taken: int) -> None:
        """Find places for all numbers of these jobs: `taken` sums come before theirs."""
        self._jobs, self._layers, self._sizes = jobs, layers, sizes
        self._room, self._sums = Room(), Room(taken)
        of = [j for j, kind in enumerate(layers.kinds) if kind.tile is not None]
        self._sides = {j: self._sides_of(j) for j in of}
        self._totals = {j: self._sums.take(2 * self._sides[j][0].matrices) for j in of}  # of G and of R, of each matrix
        self.bytes, self.n_sums = self._room.taken, self._sums.taken

    def _sides_of(self, j: int) -> tuple[Side, ...]:
        dtype, count, plane = self._layers.kinds[j].compute, self._layers.count(j), plane_of(self._jobs[j])
        _, down, across = chunks_along(self._jobs[j], self._sizes)
        found = []
        for entries, strips in ((plane.rows, across), (plane.columns, down)):
            n = count * plane.matrices * entries
            places = self._room.take(n * strips * dtype.itemsize), self._room.take(n * dtype.itemsize)
            found.append(Side(count * plane.matrices, entries, strips, dtype, *places, self._sums.take(n)))
        return tuple(found)

    def statistics(self, j: int) -> Iterator[np.ndarray]:
        """Yield the places of a job's sums: row and column sums, and each matrix's of G and of R."""
        for side in self._sides[j]:
            yield side.sums_at + np.arange(side.length)
        for i in (0, 1):
            matrices = self._sides[j][0].matrices
            yield self._totals[j] + i * matrices + np.arange(matrices)

    def note_layers(self, room: int) -> None:
        """Write in the rows of layers where their strips and factors are, given the address of the room."""
        for j, (rows, columns) in self._sides.items():
            own, plane = self._layers.rows[self._layers.of(j)], plane_of(self._jobs[j])
            n, size = np.arange(len(own)) * plane.matrices, rows.dtype.itemsize
            _fill(own, {
                at.MATRICES: plane.matrices,
                at.ALL_MATRICES: rows.matrices,
                at.ROWS: plane.rows,
                at.COLUMNS: plane.columns,
                at.ROW_STRIPS: room + rows.strips_at + n * rows.entries * size,
                at.COLUMN_STRIPS: room + columns.strips_at + n * columns.entries * size,
                at.ROW_FACTORS: room + rows.factors_at + n * rows.entries * size,
                at.COLUMN_FACTORS: room + columns.factors_at + n * columns.entries * size,
            })  # fmt: skip

    def launches(self, room: int, sums: int, shared: bool, device: torch.device) -> Launches:
        """Return the programs that take these statistics; `room` and `sums` are addresses.

        What others complete is in float64 on every rank, also on one whose shard is small.
        """
        each = [(j, which) for j in self._sides for which in (0, 1)]
        table = np.zeros((len(each), at.SIDE.value), np.int64)
        for row, (j, which) in zip(table, each, strict=True):
            self._note_side(row, j, which, (room, sums), shared)
        sides, n = np.arange(len(table)), table[:, at.SIDE_MATRICES] * table[:, at.SIDE_ENTRIES]
        folded = np.where(table[:, at.SUMS] != table[:, at.STRIPS_FIRST], -(-n // FOLDED), 0)
        length = self._sizes.entries
        return Launches(
            torch.from_numpy(table).to(device),
            Programs(numbered(sides, folded, device), {"LENGTH": FOLDED, "DEPTH": self._sizes.strips}),
            list(self._by_matrices(table, device)),
            Programs(numbered(sides, -(-n // length), device), {"LENGTH": length, "num_warps": WARPS}),
        )

    def _by_matrices(self, sides: np.ndarray, device: torch.device) -> Iterator[Programs]:
        """Yield the programs that take whole matrices' row sums: of a large one, or of several small ones."""
        entries = self._sizes.entries
        of_rows, small = sides[:, at.OF_ROWS] == 1, sides[:, at.SIDE_ENTRIES] <= SMALL
        for shape, own in (((1, 4 * entries), of_rows & ~small), ((entries // SMALL, SMALL), of_rows & small)):
            rows = np.flatnonzero(own)
            pairs = numbered(rows, -(-sides[rows, at.SIDE_MATRICES.value] // shape[0]), device)
            if len(pairs):
                yield Programs(pairs, {"SHAPE": shape, "num_warps": WARPS})

    def _note_side(self, row: np.ndarray, j: int, which: int, places: tuple[int, int], shared: bool) -> None:
        """Write the row of a job's statistics by rows (0) or by columns (1)."""
        job, side, (room, sums) = self._jobs[j], self._sides[j][which], places
        full, state = full_shape(job), (job.state.exp_avg_sq_row, job.state.exp_avg_sq_col)[which]
        counts = [max(1, prod(full[d] for d in group)) for group in job.h.factored]
        apart, strips = shared or side.strips > 1, room + side.strips_at
        _fill(row, {
            at.SIDE_JOB: j,
            at.OF_ROWS: which == 0,
            at.SIDE_MATRICES: side.matrices,
            at.SIDE_ENTRIES: side.entries,
            at.STRIPS: side.strips,
            at.SUMMED: counts[1 - which],
            at.FULL_ROWS: counts[0],
            at.FULL_COLUMNS: counts[1],
            at.STORED_AS: CODES[state.dtype],
            at.STRIPS_AS: CODES[side.dtype],
            at.SUMS_AS: CODES[torch.float64 if apart else side.dtype],
            at.STORED: state.data_ptr(),
            at.STRIPS_FIRST: strips,
            at.FACTORS: room + side.factors_at,
            at.SUMS: sums + 8 * side.sums_at if apart else strips,
            at.TOTALS: sums + 8 * self._totals[j],
        })  # fmt: skip


class Launches(NamedTuple):
    """The table of sides, and the programs of each launch."""

    sides: Tensor
    fold: Programs
    total: list[Programs]
    renew: Programs


def _fill(rows: Any, values: Mapping[Any, Any]) -> None:
    """Write columns of rows, or of one."""
    for column, numbers in values.items():
        rows[..., column.value] = numbers
