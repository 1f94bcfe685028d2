"""The tables that kernels read for a list of jobs: layers and their chunks, sums by rows and columns, all others."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.gpu.launch import Kernels
from layerwise.engines.gpu.layout import CODES, ChunkSizes, layer_counts, states_of
from layerwise.engines.gpu.operand_formats import format_table, operand_forms
from layerwise.engines.gpu.specialization import WARPS, Kind, chunks_along, functions_for, matrix_sizes
from layerwise.engines.gpu.step_params import StepParams
from layerwise.engines.programs import program_for, rows_and_columns

Put = Callable[[np.ndarray], Tensor]  # to the device
FOLDED = 64  # sums whose strips one program adds up
SMALL = 16  # row sums of a matrix, of which one program adds up several
DOUBLE = torch.float64.itemsize


class LaunchGrid(NamedTuple):
    """The programs of a launch, and the properties for which they are compiled."""

    table: Tensor  # on the device: layers, or layers or sides, each with the number of its part
    constants: Mapping[str, Any]
    kind: Any = None  # of the layers: any of those that have the same program, or all else too


class Tables:
    """The tables of a list of jobs on the device, valid while the jobs stay the same."""

    def __init__(
        self,
        jobs: Sequence[Job],
        kinds: Sequence[Kind],
        step_params: StepParams,
        sizes: ChunkSizes,
        answers: Tensor,
        shared: bool,
    ) -> None:
        """Create the tables; in `shared` ones others complete the sums. All tables of the jobs have the same
        answers.
        """
        self.held: list[Tensor] = []  # all memory that launches read and write, except the jobs' own
        self.device = device = step_params.device
        self.streams: set[Any] = set()  # streams that have used or created them
        self.jobs, self.kinds, self.sizes, self.shared = jobs, kinds, sizes, shared
        self.layers = layers = Layers(jobs, kinds, sizes)
        self.step_params, self.width = step_params.table, step_params.width
        self.answers = answers
        storage = self.array_on_device(format_table(jobs)) if any(map(operand_forms, jobs)) else None
        self.pointers = self.array_on_device(_pointers(jobs, storage))
        real: Any = {"dtype": torch.float64, "device": device}
        # The partial sums of a round of each chunk; all totals of each layer, and statistics; what gradients are
        # divided by.
        most = max(
            [1, *(len(kind.program.request_names(j)) for kind in kinds for j in range(len(kind.program.rounds)))]
        )
        self.partials = torch.zeros((most, layers.chunks), **real)
        self.clips = torch.ones(layers.n, **real)
        totals = max([1, *(kind.program.num_totals for kind in kinds)])
        self.lines = RowColumnTables(jobs, layers, sizes, totals * layers.n)
        self.sums = torch.zeros(self.lines.sums, **real)
        # All bits set are nan in either dtype: an earlier result, such as a proof's, is never mistaken for a launch's.
        room = torch.full((self.lines.room,), -1, device=device).view(torch.float64)
        self.lines.lay_out(room, self.sums, shared, self.array_on_device)
        self.layer_table = self.array_on_device(layers.rows)
        self.groups = list(layers.grids_by_kind(sizes, self.array_on_device))
        self.spans = list(layers.grids_by_program(self.array_on_device))
        self.held += [self.step_params, self.answers, self.partials, self.clips, self.sums, room]
        self.own, self.model = (self._bounds(name) for name in ("max_grad_norm_per_tensor", "model_bound"))
        self.bounded = self.own is not None or self.model is not None
        self.always_ready = self.bounded or any(job.h.maximize or job.h.value_bounds for job in jobs)
        self.kernels = Kernels()

    def array_on_device(self, array: np.ndarray) -> Tensor:
        """Return an array on the device."""
        self.held.append(torch.from_numpy(array).to(self.device))
        return self.held[-1]

    def keep_for_stream(self, stream: Any) -> None:
        """Keep the memory of all tables until this stream has used them, even if they are freed before."""
        if stream not in self.streams:
            self.streams.add(stream)
            for x in self.held:
                x.record_stream(stream)

    def _bounds(self, name: str) -> Tensor | None:
        """Return this bound for each layer, or None if no job has one."""
        each = np.array([getattr(job.h, name, None) or inf for job in self.jobs])
        return None if np.isinf(each).all() else self.array_on_device(each[self.layers.job_of])


def _pointers(jobs: Sequence[Job], storage: Tensor | None) -> np.ndarray:
    rows = np.zeros((len(jobs), at.OPERANDS.value), np.int64)
    for j, (row, job) in enumerate(zip(rows, jobs, strict=True)):
        states = [x.data_ptr() for x in states_of(job)]
        row[at.STORAGE] = 0 if storage is None else storage[j].data_ptr()
        row[at.P], row[at.S0.value : at.S0.value + len(states)] = job.p.data_ptr(), states
    return rows


class Layers:
    """The layers of all jobs, cut into chunks."""

    def __init__(self, jobs: Sequence[Job], kinds: Sequence[Kind], sizes: ChunkSizes) -> None:
        numbers, lengths = np.array(list(map(layer_counts, jobs)), np.int64).T
        self.kinds = kinds
        self.firsts = np.cumsum([0, *numbers])  # the first layer of each job, and their number
        self.n = int(self.firsts[-1])
        self.rows = rows = np.zeros((self.n, at.LAYER.value), np.int64)
        self.job_of = of = np.repeat(np.arange(len(jobs)), numbers)
        rows[:, at.JOB], rows[:, at.COUNT] = of, lengths[of]
        rows[:, at.BASE] = (np.arange(self.n) - self.firsts[of]) * lengths[of]
        rows[:, at.ENTRIES] = np.array([layer_counts(job, job.whole)[1] for job in jobs])[of]
        for j, job in enumerate(jobs):
            _note_layer_states(own := rows[self.layers_of_job(j)], job)
            if kinds[j].has_lines:
                own[:, at.MATRICES.value : at.COLUMNS.value + 1] = matrix_sizes(job)
        blocks = [-(-n // sizes.chunk) for n in lengths]
        each = zip(jobs, kinds, blocks, strict=True)
        cuts = [prod(chunks_along(job, sizes)) if kind.has_lines else n for job, kind, n in each]
        rows[:, at.CHUNKS] = chunks = np.maximum(np.array(cuts, np.int64), 1)[of]
        rows[:, at.FIRST] = np.cumsum(chunks) - chunks
        self.chunks = int(chunks.sum())

    def layers_of_job(self, job: int) -> slice:
        return slice(int(self.firsts[job]), int(self.firsts[job + 1]))

    def grids_by_kind(self, sizes: ChunkSizes, put: Put) -> Iterator[LaunchGrid]:
        """Yield the layers of each kind in chunks, as `measure` and `apply` take them."""
        for kind, layers in self._by(lambda kind: kind):
            yield LaunchGrid(
                numbered_programs(layers, self.rows[layers, at.CHUNKS.value], put), kind.constants(sizes), kind
            )

    def grids_by_program(self, put: Put) -> Iterator[LaunchGrid]:
        """Yield the layers of each program, as `answer` takes them."""
        for kind, layers in self._by(lambda kind: kind.program):
            yield LaunchGrid(put(layers), {}, kind)

    def _by(self, key: Callable[[Kind], Hashable]) -> Iterator[tuple[Kind, Any]]:
        """Yield the numbers of layers whose kinds have the same key, and one of these kinds."""
        found: dict[Hashable, list[int]] = {}
        for j, kind in enumerate(self.kinds):
            found.setdefault(key(kind), []).append(j)
        for jobs in found.values():
            layers = np.concatenate([np.arange(*self.firsts[j : j + 2]) for j in jobs])
            if len(layers):
                yield self.kinds[jobs[0]], layers


def _note_layer_states(rows: np.ndarray, job: Job) -> None:
    """Write the places and dtypes of the layers' state numbers in the rows of a job's layers."""
    for i, state in enumerate(getattr(job.state, name) for name in program_for(job).layer_states):
        blocks = np.indices([job.p.shape[d] for d in job.block_dims]).reshape(len(job.block_dims), len(rows))
        elements = sum(
            (n * state.stride(d) for n, d in zip(blocks, job.block_dims, strict=True)), np.zeros(len(rows), int)
        )
        rows[:, at.OLD0.value + 2 * i] = state.data_ptr() + elements * state.element_size()
        rows[:, at.OLD0_AS.value + 2 * i] = CODES[state.dtype]


def numbered_programs(rows: np.ndarray, parts: np.ndarray, put: Put) -> Tensor:
    """Return a table of programs: each row's number with the number of each of its parts."""
    numbers = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    return put(np.stack([np.repeat(rows, parts), numbers], -1).astype(np.int32))


class ByteAllocator:
    """Consecutive bytes, given out in multiples of eight."""

    def __init__(self, taken: int = 0) -> None:
        self.taken = taken

    def allocate(self, n: int) -> int:
        first = self.taken
        self.taken += -(-n // 8) * 8
        return first


class RowColumnTables:
    """The jobs with state by rows and columns, and two rows of a table for each: the sides of their matrices."""

    def __init__(self, jobs: Sequence[Job], layers: Layers, sizes: ChunkSizes, taken: int) -> None:
        """Find places for their numbers; `taken` sums come before theirs."""
        self._layers, self._sizes = layers, sizes
        self._room, self._sums = ByteAllocator(), ByteAllocator(DOUBLE * taken)
        self._jobs = {j: job for j, job in enumerate(jobs) if layers.kinds[j].has_lines}
        self._table = np.zeros((len(self._jobs), at.BOTH.value, at.SIDE.value), np.int64)
        for rows, j in zip(self._table, self._jobs, strict=True):
            self._note_sides(rows, j)
        self.room, self.sums = self._room.taken // DOUBLE, self._sums.taken // DOUBLE  # the number of numbers

    def _note_sides(self, rows: np.ndarray, j: int) -> None:
        """Write the rows of a job; places are counted from the first."""
        job, plane, full = self._jobs[j], matrix_sizes(self._jobs[j]), self._jobs[j].whole
        summed = [max(1, prod(full[d] for d in group)) for group in rows_and_columns(job)]
        kind = self._layers.kinds[j]
        states, compute = [getattr(job.state, name) for name in kind.program.lines], kind.compute_dtype
        _, down, across = chunks_along(job, self._sizes)
        matrices = len(self._layers.rows[self._layers.layers_of_job(j)]) * plane.matrices
        sums, strips = matrices * np.array([plane.rows, plane.columns]), np.array([across, down])
        columns = {
            at.SIDE_JOB: j,
            at.SIDE_MATRICES: matrices,
            at.SIDE_ENTRIES: (plane.rows, plane.columns),
            at.STRIPS: strips,
            at.SUMMED: summed[::-1],
            at.OF_MATRIX: prod(summed),
            at.FULL_ROWS: summed[0],
            at.STORED_AS: [CODES[state.dtype] for state in states],
            at.STRIPS_AS: CODES[compute],
            at.SUMS_AS: CODES[torch.float64],
            at.STORED: [state.data_ptr() for state in states],
            at.STRIPS_FIRST: [self._room.allocate(n * compute.itemsize) for n in sums * strips],
            at.MADE: [self._room.allocate(n * compute.itemsize) for n in sums],
            at.SUMS: [self._sums.allocate(n * DOUBLE) for n in sums],
            at.TOTALS: self._sums.allocate(2 * matrices * DOUBLE),
        }
        for column, numbers in columns.items():
            rows[:, column.value] = numbers

    def sum_places(self, j: int) -> Iterator[np.ndarray]:
        """Yield the places of a job's sums: by rows and by columns, and each matrix's of all and of its rows' state."""
        rows = self._table[[*self._jobs].index(j)]
        first, matrices = rows[0, at.TOTALS], rows[0, at.SIDE_MATRICES]
        runs = [*zip(rows[:, at.SUMS], matrices * rows[:, at.SIDE_ENTRIES], strict=True)]
        for place, n in (*runs, (first, matrices), (first + DOUBLE * matrices, matrices)):
            yield place // DOUBLE + np.arange(n)

    def lay_out(self, room: Tensor, sums: Tensor, shared: bool, put: Put) -> None:
        """Make the tables, given memory for all numbers.

        A sum with only one strip is that strip, unless it is `shared`: sums that other ranks complete are in float64 on
        every rank, even if a shard is small.
        """
        sides = self._table.reshape(-1, at.SIDE.value).copy()
        sides[:, [at.STRIPS_FIRST.value, at.MADE.value]] += room.data_ptr()
        sides[:, [at.SUMS.value, at.TOTALS.value]] += sums.data_ptr()
        folded = (sides[:, at.STRIPS] > 1) | shared
        for of_sums, of_strips in ((at.SUMS, at.STRIPS_FIRST), (at.SUMS_AS, at.STRIPS_AS)):
            sides[~folded, of_sums.value] = sides[~folded, of_strips.value]
        self.sides, n, each = put(sides), sides[:, at.SIDE_MATRICES] * sides[:, at.SIDE_ENTRIES], np.arange(len(sides))
        depth, length = self._sizes.strips, self._sizes.entries
        self.fold = LaunchGrid(
            numbered_programs(each, -(-n // FOLDED) * folded, put), {"LENGTH": FOLDED, "DEPTH": depth}
        )
        self.total = list(self._by_matrices(sides, put))
        self.renew = list(self._by_functions(-(-n // length), {"LENGTH": length, "num_warps": WARPS}, put))
        for k, (j, job) in enumerate(self._jobs.items()):
            own = self._layers.rows[self._layers.layers_of_job(j)]
            own[:, at.SIDES.value] = self.sides[at.BOTH.value * k :].data_ptr()
            own[:, at.FIRST_MATRIX.value] = np.arange(len(own)) * matrix_sizes(job).matrices

    def _by_functions(self, parts: np.ndarray, sizes: Mapping[str, object], put: Put) -> Iterator[LaunchGrid]:
        """Yield the programs that make state, for all sides with the same functions."""
        functions = [(one.row, one.column) for one in map(functions_for, self._jobs.values())]
        for pair in dict.fromkeys(functions):
            sides = np.flatnonzero(np.repeat([one == pair for one in functions], at.BOTH.value))
            yield LaunchGrid(numbered_programs(sides, parts[sides], put), {**sizes, "ROW": pair[0], "COLUMN": pair[1]})

    def _by_matrices(self, sides: np.ndarray, put: Put) -> Iterator[LaunchGrid]:
        """Yield the programs that take whole matrices' row sums: of a large one, or of several small ones."""
        entries, of_rows = self._sizes.entries, np.arange(at.BY_ROWS.value, len(sides), at.BOTH.value)
        small = sides[of_rows, at.SIDE_ENTRIES.value] <= SMALL
        for shape, rows in (((1, 4 * entries), of_rows[~small]), ((entries // SMALL, SMALL), of_rows[small])):
            pairs = numbered_programs(rows, -(-sides[rows, at.SIDE_MATRICES.value] // shape[0]), put)
            yield LaunchGrid(pairs, {"SHAPE": shape, "num_warps": WARPS})
