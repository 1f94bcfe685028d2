"""Tables of where the layers of a list of jobs lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.kernels import tables as at

Offsets = tuple[int, ...]  # of the operands, in their own elements
P, G = at.P.value, at.G.value


class Dim(NamedTuple):
    """Dimensions that every operand walks through with one stride, as one."""

    size: int
    strides: Offsets


class Way(NamedTuple):
    """A walk through one job: the offsets of its layers, and the dimensions of each."""

    bases: list[Offsets]
    dims: list[Dim]
    size: int  # elements of one layer

    @property
    def flat(self) -> bool:
        return not self.dims or (len(self.dims) == 1 and set(self.dims[0].strides) == {1})


def operands(job: Job, g: Tensor, states: Sequence[Tensor | None]) -> list[Tensor]:
    """Return p, g and the states of the tensor's shape; p stands in for those that are missing."""
    return [job.p, g, *(job.p if state is None else state for state in states)]


def way_of(job: Job, arrays: Sequence[Tensor]) -> Way:
    """Return how to walk through arrays of the job's shape."""
    shape, strides = tuple(job.p.shape), list(zip(*(a.stride() for a in arrays), strict=True))
    blocks = [[tuple(i * s for s in strides[d]) for i in range(shape[d])] for d in job.block_dims]
    bases = [tuple(map(sum, zip((0,) * len(arrays), *one, strict=False))) for one in product(*blocks)]
    if not blocks:
        bases = [(0,) * len(arrays)]
    own = [Dim(n, strides[d]) for d, n in enumerate(shape) if d not in job.block_dims]
    return Way(bases, merged(own), prod(dim.size for dim in own))


def merged(dims: Sequence[Dim]) -> list[Dim]:
    """Merge dimensions into as few as possible, the one with p's smallest stride last."""
    found: list[Dim] = []
    for dim in sorted((dim for dim in dims if dim.size != 1), key=lambda dim: -dim.strides[P]):
        if found and all(s == t * dim.size for s, t in zip(found[-1].strides, dim.strides, strict=True)):
            dim = Dim(found.pop().size * dim.size, dim.strides)
        found.append(dim)
    return found


def in_place_of(g: Tensor, p: Tensor) -> Tensor:
    """Copy the gradient to p's layout in memory."""
    return torch.empty_strided(p.shape, p.stride(), dtype=g.dtype, device=g.device).copy_(g)


@dataclass(frozen=True)
class Kind:
    """The constants that the kernels of some layers are compiled for."""

    dtypes: tuple[torch.dtype, ...]  # of the operands
    flat: bool
    aligned: bool
    traits: Any = ()  # what else the rule's kernels are compiled for

    @property
    def compute(self) -> torch.dtype:
        return torch.float64 if self.dtypes[P] is torch.float64 else torch.float32


class Group(NamedTuple):
    """Layers of one kind."""

    kind: Kind
    jobs: np.ndarray
    chunks: Tensor  # on the device: the layer of each, and its number there
    size: int


class Layers:
    """The layers of all jobs, cut into chunks."""

    def __init__(
        self, jobs: Sequence[Job], ways: Sequence[Way], kinds: Sequence[Kind], chunk: int, device: torch.device
    ) -> None:
        self.ways = ways
        self.firsts = np.cumsum([0, *(len(way.bases) for way in ways)])  # the first layer of each job, and their number
        rows = np.zeros((self.n, at.LAYER.value), np.int64)
        for j, (job, way) in enumerate(zip(jobs, ways, strict=True)):
            rows[self.firsts[j] : self.firsts[j + 1]] = _row(j, job, way, chunk)
            for i, base in enumerate(way.bases):
                rows[self.firsts[j] + i, at.BASE.value : at.BASE.value + len(base)] = base
            rows[self.firsts[j] : self.firsts[j] + 1, at.LEADS.value] = 1
        chunks = rows[:, at.CHUNKS.value]
        rows[:, at.FIRST.value] = np.cumsum(chunks) - chunks
        self.chunks = int(chunks.sum())
        self.job_of = torch.from_numpy(rows[:, at.JOB.value].copy()).to(device)
        self.lengths = torch.from_numpy(np.diff(self.firsts)).to(device)  # how many layers each job has
        self.table = torch.from_numpy(rows).to(device)
        self.groups = list(self._groups(kinds, chunks, device))

    @property
    def n(self) -> int:
        return int(self.firsts[-1])

    def of(self, job: int) -> slice:
        return slice(int(self.firsts[job]), int(self.firsts[job + 1]))

    def _groups(self, kinds: Sequence[Kind], chunks: np.ndarray, device: torch.device) -> Any:
        for kind in dict.fromkeys(kinds):
            jobs = np.array([j for j, other in enumerate(kinds) if other == kind])
            layers = np.concatenate([np.arange(*self.firsts[j : j + 2]) for j in jobs])
            pairs = numbered(layers, chunks[layers], device)
            if len(pairs):
                yield Group(kind, jobs, pairs, len(pairs))


def numbered(rows: Sequence[int] | np.ndarray, parts: Sequence[int] | np.ndarray, device: torch.device) -> Tensor:
    """Return a table of programs: each row's number with the number of each of its parts."""
    numbers = np.concatenate([np.arange(0), *(np.arange(n) for n in parts)])
    return torch.from_numpy(np.stack([np.repeat(rows, parts), numbers], -1).astype(np.int32)).to(device)


def _row(j: int, job: Job, way: Way, chunk: int) -> np.ndarray:
    """Return the table row of a job's layers; dimensions that it lacks come first, with size 1."""
    row = np.zeros(at.LAYER.value, np.int64)
    row[at.JOB.value], row[at.COUNT.value] = j, way.size
    row[at.CHUNKS.value] = max(1, -(-way.size // chunk))
    full_shape = job.p.shape if job.shape is None else job.shape
    row[at.ENTRIES.value] = prod(n for d, n in enumerate(full_shape) if d not in job.block_dims)
    missing = at.DIMS.value - len(way.dims)
    for d in range(at.DIMS.value):
        size, strides = (1, (0,)) if d < missing else way.dims[d - missing]
        row[at.SIZE.value + d] = size
        first = at.STRIDE.value + d * at.OPERANDS.value
        row[first : first + len(strides)] = strides
    return row


def kind_of(way: Way, arrays: Sequence[Tensor], traits: Any = ()) -> Kind:
    return Kind(tuple(a.dtype for a in arrays), way.flat, way.flat and aligned(arrays, way.bases), traits)


def aligned(arrays: Sequence[Tensor], bases: Sequence[Offsets]) -> bool:
    """Return whether all layers begin at multiples of sixteen bytes, so that vectors can be moved."""
    return all(
        a.data_ptr() % 16 == 0 and all(base[k] * a.element_size() % 16 == 0 for base in bases)
        for k, a in enumerate(arrays)
    )
