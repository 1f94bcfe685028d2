"""Tables of the places of layers: each layer is one stretch of its tensor's memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.gpu.program import Functions, layer_states_of
from layerwise.engines.structures import Program

OF_TORCH = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
CODES = {dtype: i for i, dtype in enumerate(OF_TORCH)}  # in tables, in the order of FLOAT32 and so on
STORED = OF_TORCH | {torch.int8: tl.int8, torch.uint8: tl.uint8}  # also codes


def operands(job: Job, g: Tensor, states: Sequence[Tensor | None]) -> list[Tensor]:
    """Return p, g and the states of the tensor's shape; p stands in for those that are missing."""
    return [job.p, g, *(job.p if state is None else state for state in states)]


def full_shape(job: Job) -> tuple[int, ...]:
    """Return the shape of the unsharded tensor."""
    return tuple(job.p.shape) if job.shape is None else job.shape


# ---- what lies in memory as kernels walk through it


def misplaced(job: Job, states: Sequence[Tensor | None]) -> str:
    """Return the reason why the layers of a job are not stretches of memory, or an empty string."""
    p = job.p
    if not is_dense(p):
        return f"strides of {p.stride()} for {tuple(p.shape)} do not fill one stretch of memory"
    for state in states:
        if state is not None and not lies_like(state, p):
            return f"a state has strides {state.stride()}, and the parameter {p.stride()}"
    if job.block_dims and not (p.is_contiguous() and in_order(job, job.block_dims, but(job, job.block_dims))):
        return f"blocks along dimensions {job.block_dims} of {tuple(p.shape)} are not stretches of memory"
    return ""


def is_dense(x: Tensor) -> bool:
    """Return True if the elements fill a stretch of memory, in any order of dimensions."""
    step = 1
    for stride, n in sorted((stride, n) for stride, n in zip(x.stride(), x.shape, strict=True) if n != 1):
        if stride != step and x.numel():
            return False
        step *= n
    return True


def lies_like(x: Tensor, p: Tensor) -> bool:
    """Return True if two tensors of one shape have the same strides, wherever strides matter."""
    if x.stride() == p.stride() or not p.numel():
        return True
    return all(s == t for s, t, n in zip(x.stride(), p.stride(), p.shape, strict=True) if n != 1)


def in_order(job: Job, *groups: Sequence[int]) -> bool:
    """Return True if the dimensions of these groups follow one another in the tensor; all ranks see the same."""
    sizes = full_shape(job)
    dims = [d for group in groups for d in group if sizes[d] != 1]
    return dims == sorted(dims)


def but(job: Job, *groups: Sequence[int]) -> list[int]:
    """Return the dimensions that are in none of these groups."""
    return [d for d in range(job.p.ndim) if not any(d in group for group in groups)]


def in_place_of(g: Tensor, p: Tensor) -> Tensor:
    """Copy the gradient to p's layout in memory."""
    return torch.empty_strided(p.shape, p.stride(), dtype=g.dtype, device=g.device).copy_(g)


# ---- tables


@dataclass(frozen=True)
class Sizes:
    """The sizes of the pieces that programs take."""

    chunk: int = 8192  # elements that one program takes
    block: int = 1024  # elements that it holds at a time
    lanes: int = 256  # sums that are added at a time
    wide: tuple[int, int, int] = (1, 32, 128)  # matrices, rows and columns that a program holds at a time,
    narrow: tuple[int, int, int] = (64, 4, 4)  # of small matrices,
    single: tuple[int, int, int] = (4096, 1, 1)  # and of those of one number
    tiles: int = 8  # such tiles that it takes, one below the other
    entries: int = 1024  # row or column statistics that one program takes
    strips: int = 32  # strips' sums that are added at a time


@dataclass(frozen=True)
class Kind:
    """What the kernels of some layers are compiled for."""

    dtypes: tuple[torch.dtype, ...]  # of the operands
    aligned: bool
    program: Program
    functions: Functions
    formats: int  # of what is stored
    factored: bool
    clamps: bool  # of a factored second moment

    @property
    def compute(self) -> torch.dtype:
        return torch.float64 if self.dtypes[0] is torch.float64 else torch.float32

    def constants(self) -> dict[str, Any]:
        """Return the same by the names that kernels have for it."""
        param, grad, *states = (STORED[dtype] for dtype in self.dtypes)
        return {
            "PARAM": param,
            "GRAD": grad,
            "STATE_DTYPES": tuple(states),
            "STATES": len(states),
            "COMPUTE": OF_TORCH[self.compute],
            "FORMATS": self.formats,
            "VALUES": self.functions.values,
        }


def aligned(job: Job, arrays: Sequence[Tensor]) -> bool:
    """Return True if all layers begin at multiples of sixteen bytes, so that vectors can be moved."""
    layers, size = counts(job)
    return all(a.data_ptr() % 16 == 0 and (layers < 2 or size * a.element_size() % 16 == 0) for a in arrays)


def counts(job: Job) -> tuple[int, int]:
    """Return the number of layers of a job, and the number of elements of each."""
    shape = job.p.shape
    return prod(shape[d] for d in job.block_dims), prod(shape[d] for d in but(job, job.block_dims))


def entries(job: Job) -> int:
    """Return the number of elements of a layer of the unsharded tensor."""
    sizes = full_shape(job)
    return prod(sizes[d] for d in but(job, job.block_dims))


def _note_layer_states(rows: np.ndarray, job: Job) -> None:
    """Write the places and dtypes of the layers' state numbers in the rows of a job's layers."""
    for i, state in enumerate(layer_states_of(job)):
        blocks = np.indices([job.p.shape[d] for d in job.block_dims]).reshape(len(job.block_dims), len(rows))
        elements = sum(
            (n * state.stride(d) for n, d in zip(blocks, job.block_dims, strict=True)), np.zeros(len(rows), int)
        )
        rows[:, at.OLD0.value + 2 * i] = state.data_ptr() + elements * state.element_size()
        rows[:, at.OLD0_AS.value + 2 * i] = CODES[state.dtype]


class Group(NamedTuple):
    """Layers of one kind."""

    kind: Kind
    jobs: np.ndarray
    chunks: Tensor  # on the device: the layer of each, and its number there
    size: int
    constants: Mapping[str, Any]  # of kernels


class Layers:
    """The layers of all jobs, cut into chunks."""

    def __init__(self, jobs: Sequence[Job], kinds: Sequence[Kind], walked: Sequence[tuple[int, int]], sizes: Sizes):
        """Lay out the layers; `walked` are the number of each job's, and of the elements that kernels walk in each."""
        device = jobs[0].p.device
        numbers, lengths = np.array(walked, np.int64).T
        self.firsts = np.cumsum([0, *numbers])  # the first layer of each job, and their number
        rows = np.zeros((self.n, at.LAYER.value), np.int64)
        of = np.repeat(np.arange(len(jobs)), numbers)
        rows[:, at.JOB], rows[:, at.COUNT] = of, lengths[of]
        rows[:, at.BASE] = (np.arange(self.n) - self.firsts[of]) * lengths[of]
        rows[:, at.ENTRIES] = np.array([entries(job) for job in jobs])[of]
        for j, job in enumerate(jobs):
            _note_layer_states(rows[self.of(j)], job)
        rows[:, at.CHUNKS] = chunks = np.maximum(1, -(-lengths // sizes.chunk))[of]
        rows[:, at.FIRST] = np.cumsum(chunks) - chunks
        self.chunks = int(chunks.sum())
        self.starts = rows[:, [at.FIRST.value, at.CHUNKS.value]]  # of the partial sums of each layer, and their number
        self.job_of = torch.from_numpy(of).to(device)
        self.lengths = torch.from_numpy(numbers).to(device)  # how many layers each job has
        self.table = torch.from_numpy(rows).to(device)
        self.groups = list(self._groups(kinds, chunks, sizes, device))

    @property
    def n(self) -> int:
        return int(self.firsts[-1])

    def of(self, job: int) -> slice:
        return slice(int(self.firsts[job]), int(self.firsts[job + 1]))

    def count(self, job: int) -> int:
        return int(self.firsts[job + 1] - self.firsts[job])

    def _groups(self, kinds: Sequence[Kind], chunks: np.ndarray, sizes: Sizes, device: torch.device) -> Iterator[Group]:
        for kind in dict.fromkeys(kinds):
            jobs = np.array([j for j, other in enumerate(kinds) if other == kind])
            layers = np.concatenate([np.arange(*self.firsts[j : j + 2]) for j in jobs])
            pairs = numbered(layers, chunks[layers], device)
            if len(pairs):
                constants = {**kind.constants(), "ALIGNED": kind.aligned, "CHUNK": sizes.chunk, "BLOCK": sizes.block}
                yield Group(kind, jobs, pairs, len(pairs), constants)


def numbered(rows: np.ndarray, parts: np.ndarray, device: torch.device) -> Tensor:
    """Return a table of programs: each row's number with the number of each of its parts."""
    numbers = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    return torch.from_numpy(np.stack([np.repeat(rows, parts), numbers], -1).astype(np.int32)).to(device)
