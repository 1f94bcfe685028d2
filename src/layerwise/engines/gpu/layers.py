"""The layers of all jobs, cut into chunks: their tables for kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.gpu.kinds import Kind
from layerwise.engines.gpu.layout import CODES, Sizes, counts, entries
from layerwise.engines.gpu.planes import chunks_along, is_tiled, plane_of
from layerwise.engines.gpu.program import layer_states_of

Put = Callable[[np.ndarray], Tensor]  # to the device


class Group(NamedTuple):
    """Layers of one kind."""

    kind: Kind
    chunks: Tensor  # on the device: the layer of each, and its number there
    constants: Mapping[str, Any]  # of kernels


class Layers:
    """The layers of all jobs, cut into chunks."""

    def __init__(self, jobs: Sequence[Job], kinds: Sequence[Kind], sizes: Sizes) -> None:
        numbers, lengths = np.array(list(map(counts, jobs)), np.int64).T
        self.kinds = kinds
        self.firsts = np.cumsum([0, *numbers])  # the first layer of each job, and their number
        self.rows = rows = np.zeros((self.n, at.LAYER.value), np.int64)
        self.job_of = of = np.repeat(np.arange(len(jobs)), numbers)
        rows[:, at.JOB], rows[:, at.COUNT] = of, lengths[of]
        rows[:, at.BASE] = (np.arange(self.n) - self.firsts[of]) * lengths[of]
        rows[:, at.ENTRIES] = np.array([entries(job) for job in jobs])[of]
        for j, job in enumerate(jobs):
            _note_layer_states(own := rows[self.of(j)], job)
            if is_tiled(job):
                own[:, at.MATRICES.value : at.COLUMNS.value + 1] = plane_of(job)
        cuts = [_chunks_of(*each, sizes) for each in zip(jobs, lengths, strict=True)]
        rows[:, at.CHUNKS] = chunks = np.array(cuts, np.int64)[of]
        rows[:, at.FIRST] = np.cumsum(chunks) - chunks
        self.chunks = int(chunks.sum())

    @property
    def n(self) -> int:
        return int(self.firsts[-1])

    def of(self, job: int) -> slice:
        return slice(int(self.firsts[job]), int(self.firsts[job + 1]))

    def count(self, job: int) -> int:
        return int(self.firsts[job + 1] - self.firsts[job])

    def of_jobs(self, jobs: Sequence[int]) -> Any:
        """Return the numbers of all layers of these jobs."""
        return np.concatenate([np.arange(*self.firsts[j : j + 2]) for j in jobs])

    def groups(self, sizes: Sizes, put: Put) -> Iterator[Group]:
        for kind in dict.fromkeys(self.kinds):
            layers = self.of_jobs([j for j, other in enumerate(self.kinds) if other == kind])
            pairs = numbered(layers, self.rows[layers, at.CHUNKS.value], put)
            if len(pairs):
                yield Group(kind, pairs, kind.constants(sizes))


def _chunks_of(job: Job, length: int, sizes: Sizes) -> int:
    """Return the number of chunks of each layer of a job."""
    return prod(chunks_along(job, sizes)) if is_tiled(job) else max(1, -(-length // sizes.chunk))


def _note_layer_states(rows: np.ndarray, job: Job) -> None:
    """Write the places and dtypes of the layers' state numbers in the rows of a job's layers."""
    for i, state in enumerate(layer_states_of(job)):
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
