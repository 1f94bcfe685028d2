"""The layers of all jobs, cut into chunks: their table, and the programs of launches that take them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.gpu.kinds import Kind
from layerwise.engines.gpu.layout import CODES, Sizes, counts, full_shape
from layerwise.engines.gpu.planes import chunks_along, is_factored, plane_of
from layerwise.engines.programs import program_for

Put = Callable[[np.ndarray], Tensor]  # to the device


class Group(NamedTuple):
    """Layers of one kind, or of kinds with the same program."""

    kind: Kind  # any of them
    programs: Tensor  # on the device: the chunks, each by its layer and its number there, or the layers themselves
    constants: Mapping[str, Any]  # of kernels that take chunks


class Layers:
    """The layers of all jobs, cut into chunks."""

    def __init__(self, jobs: Sequence[Job], kinds: Sequence[Kind], sizes: Sizes) -> None:
        numbers, lengths = np.array(list(map(counts, jobs)), np.int64).T
        self.kinds = kinds
        self.firsts = np.cumsum([0, *numbers])  # the first layer of each job, and their number
        self.n = int(self.firsts[-1])
        self.rows = rows = np.zeros((self.n, at.LAYER.value), np.int64)
        self.job_of = of = np.repeat(np.arange(len(jobs)), numbers)
        rows[:, at.JOB], rows[:, at.COUNT] = of, lengths[of]
        rows[:, at.BASE] = (np.arange(self.n) - self.firsts[of]) * lengths[of]
        rows[:, at.ENTRIES] = np.array([counts(job, full_shape(job))[1] for job in jobs])[of]
        for j, job in enumerate(jobs):
            _note_layer_states(own := rows[self.of(j)], job)
            if is_factored(job):
                own[:, at.MATRICES.value : at.COLUMNS.value + 1] = plane_of(job)
        blocks = [-(-n // sizes.chunk) for n in lengths]
        cuts = [prod(chunks_along(job, sizes)) if is_factored(job) else n for job, n in zip(jobs, blocks, strict=True)]
        rows[:, at.CHUNKS] = chunks = np.maximum(np.array(cuts, np.int64), 1)[of]
        rows[:, at.FIRST] = np.cumsum(chunks) - chunks
        self.chunks = int(chunks.sum())

    def of(self, job: int) -> slice:
        return slice(int(self.firsts[job]), int(self.firsts[job + 1]))

    def chunks_of_kinds(self, sizes: Sizes, put: Put) -> Iterator[Group]:
        """Yield the layers of each kind in chunks, as `measure` and `apply` take them."""
        for kind, layers in self._by(lambda kind: kind):
            yield Group(kind, numbered(layers, self.rows[layers, at.CHUNKS.value], put), kind.constants(sizes))

    def of_programs(self, put: Put) -> Iterator[Group]:
        """Yield the layers of each program, as `answer` takes them."""
        for kind, layers in self._by(attrgetter("program", "factored")):
            yield Group(kind, put(layers), {})

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


def numbered(rows: np.ndarray, parts: np.ndarray, put: Put) -> Tensor:
    """Return a table of programs: each row's number with the number of each of its parts."""
    numbers = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    return put(np.stack([np.repeat(rows, parts), numbers], -1).astype(np.int32))
