"""Layers with a factored V: the table of their statistics, and the programs that take these between other launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.gpu.kinds import WARPS
from layerwise.engines.gpu.layers import Layers, Put, numbered
from layerwise.engines.gpu.layout import CODES, Sizes, full_shape
from layerwise.engines.gpu.planes import chunks_along, is_factored, plane_of

FOLDED = 64  # sums whose strips one program adds up
SMALL = 16  # row sums of a matrix, of which one program adds up several
DOUBLE = torch.float64.itemsize


class Programs(NamedTuple):
    """The programs of a launch: the side and its part that each takes, and what they are compiled for."""

    pairs: Tensor
    constants: dict[str, Any]


class Room:
    """Consecutive bytes, given out in multiples of eight."""

    def __init__(self, taken: int = 0) -> None:
        self.taken = taken

    def take(self, n: int) -> int:
        first = self.taken
        self.taken += -(-n // 8) * 8
        return first


class Factored:
    """The factored jobs of a list, with two rows of a table for each: the sides of their matrices."""

    def __init__(self, jobs: Sequence[Job], layers: Layers, sizes: Sizes, taken: int) -> None:
        """Find places for their numbers; `taken` sums come before theirs."""
        self._layers, self._sizes = layers, sizes
        self._room, self._sums = Room(), Room(DOUBLE * taken)
        self._jobs = {j: job for j, job in enumerate(jobs) if is_factored(job)}
        self._table = np.zeros((len(self._jobs), at.BOTH.value, at.SIDE.value), np.int64)
        for rows, j in zip(self._table, self._jobs, strict=True):
            self._note_sides(rows, j)
        self.room, self.sums = self._room.taken // DOUBLE, self._sums.taken // DOUBLE  # numbers in all

    def _note_sides(self, rows: np.ndarray, j: int) -> None:
        """Write the rows of a job's statistics by rows and by columns; places are counted from the first."""
        job, plane, full = self._jobs[j], plane_of(self._jobs[j]), full_shape(self._jobs[j])
        summed = [max(1, prod(full[d] for d in group)) for group in job.h.factored]
        states, compute = (job.state.exp_avg_sq_row, job.state.exp_avg_sq_col), self._layers.kinds[j].compute
        _, down, across = chunks_along(job, self._sizes)
        matrices = len(self._layers.rows[self._layers.of(j)]) * plane.matrices
        sums, strips = matrices * np.array([plane.rows, plane.columns]), np.array([across, down])
        columns = {
            at.SIDE_JOB: j,
            at.SIDE_MATRICES: matrices,
            at.SIDE_ENTRIES: (plane.rows, plane.columns),
            at.STRIPS: strips,
            at.SUMMED: summed[::-1],
            at.FULL_ROWS: summed[0],
            at.STORED_AS: [CODES[state.dtype] for state in states],
            at.STRIPS_AS: CODES[compute],
            at.SUMS_AS: CODES[torch.float64],
            at.STORED: [state.data_ptr() for state in states],
            at.STRIPS_FIRST: [self._room.take(n * compute.itemsize) for n in sums * strips],
            at.FACTORS: [self._room.take(n * compute.itemsize) for n in sums],
            at.SUMS: [self._sums.take(n * DOUBLE) for n in sums],
            at.TOTALS: self._sums.take(2 * matrices * DOUBLE),
        }
        for column, numbers in columns.items():
            rows[:, column.value] = numbers

    def statistics(self, j: int) -> Iterator[np.ndarray]:
        """Yield the places of a job's sums: row and column sums, and each matrix's of G and of R."""
        rows = self._table[[*self._jobs].index(j)]
        first, matrices = rows[0, at.TOTALS], rows[0, at.SIDE_MATRICES]
        runs = [*zip(rows[:, at.SUMS], matrices * rows[:, at.SIDE_ENTRIES], strict=True)]
        for place, n in (*runs, (first, matrices), (first + DOUBLE * matrices, matrices)):
            yield place // DOUBLE + np.arange(n)

    def lay_out(self, room: Tensor, sums: Tensor, shared: bool, put: Put) -> None:
        """Make the tables, given memory for all numbers.

        A sum that has only one strip is that strip, unless it is `shared`: what others complete is in float64 on every
        rank, also on one whose shard is small.
        """
        sides = self._table.reshape(-1, at.SIDE.value).copy()
        sides[:, [at.STRIPS_FIRST.value, at.FACTORS.value]] += room.data_ptr()
        sides[:, [at.SUMS.value, at.TOTALS.value]] += sums.data_ptr()
        folded = (sides[:, at.STRIPS] > 1) | shared
        for of_sums, of_strips in ((at.SUMS, at.STRIPS_FIRST), (at.SUMS_AS, at.STRIPS_AS)):
            sides[~folded, of_sums.value] = sides[~folded, of_strips.value]
        self.sides, n, each = put(sides), sides[:, at.SIDE_MATRICES] * sides[:, at.SIDE_ENTRIES], np.arange(len(sides))
        depth, length = self._sizes.strips, self._sizes.entries
        self.fold = Programs(numbered(each, -(-n // FOLDED) * folded, put), {"LENGTH": FOLDED, "DEPTH": depth})
        self.total = list(self._by_matrices(sides, put))
        self.renew = Programs(numbered(each, -(-n // length), put), {"LENGTH": length, "num_warps": WARPS})
        for k, (j, job) in enumerate(self._jobs.items()):
            own = self._layers.rows[self._layers.of(j)]
            own[:, at.SIDES.value] = self.sides[at.BOTH.value * k :].data_ptr()
            own[:, at.FIRST_MATRIX.value] = np.arange(len(own)) * plane_of(job).matrices

    def _by_matrices(self, sides: np.ndarray, put: Put) -> Iterator[Programs]:
        """Yield the programs that take whole matrices' row sums: of a large one, or of several small ones."""
        entries, of_rows = self._sizes.entries, np.arange(at.BY_ROWS.value, len(sides), at.BOTH.value)
        small = sides[of_rows, at.SIDE_ENTRIES.value] <= SMALL
        for shape, rows in (((1, 4 * entries), of_rows[~small]), ((entries // SMALL, SMALL), of_rows[small])):
            pairs = numbered(rows, -(-sides[rows, at.SIDE_MATRICES.value] // shape[0]), put)
            yield Programs(pairs, {"SHAPE": shape, "num_warps": WARPS})
