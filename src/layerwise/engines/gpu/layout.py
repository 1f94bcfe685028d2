"""The memory layout of tensors and their layers: each layer is one contiguous stretch of its tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
import triton.language as tl
from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.programs import program_for

OF_TORCH = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
CODES = {dtype: i for i, dtype in enumerate(OF_TORCH)}  # in tables, in the order of FLOAT32 and so on
STORED = OF_TORCH | {torch.int8: tl.int8, torch.uint8: tl.uint8}  # also codes


def states_of(job: Job) -> list[Tensor]:
    """Return the states of the tensor's shape, which the program names."""
    return [getattr(job.state, name) for name in program_for(job).states]


# ---- memory that kernels can walk through


def why_not_stretches(job: Job, states: Sequence[Tensor]) -> str:
    """Return the reason why the layers of a job are not stretches of memory, or an empty string."""
    p = job.p
    if not is_dense(p):
        return f"strides of {p.stride()} for {tuple(p.shape)} leave gaps in memory"
    for state in states:
        if not has_same_strides(state, p):
            return f"a state has strides {state.stride()}, but the parameter has {p.stride()}"
    if job.block_dims and not (
        p.is_contiguous() and dims_are_in_order(job, job.block_dims, other_dims(job, job.block_dims))
    ):
        return f"blocks along dimensions {job.block_dims} of {tuple(p.shape)} are not contiguous in memory"
    if job.shape is None and not layer_counts(job)[0]:  # no kernel would see that it has counted a step
        return f"there are no blocks along dimensions {job.block_dims} of {tuple(p.shape)}"
    return ""


def is_dense(x: Tensor) -> bool:
    """Return True if the elements fill a stretch of memory, in any order of dimensions."""
    step = 1
    for stride, n in sorted((stride, n) for stride, n in zip(x.stride(), x.shape, strict=True) if n != 1):
        if stride != step and x.numel():
            return False
        step *= n
    return True


def has_same_strides(x: Tensor, p: Tensor) -> bool:
    """Return True if two tensors of one shape have the same strides, where strides matter."""
    if x.stride() == p.stride() or not p.numel():
        return True
    return all(s == t for s, t, n in zip(x.stride(), p.stride(), p.shape, strict=True) if n != 1)


def dims_are_in_order(job: Job, *groups: Sequence[int]) -> bool:
    """Return True if the dimensions of these groups follow one another in the tensor; all ranks see the same."""
    sizes = job.whole
    dims = [d for group in groups for d in group if sizes[d] != 1]
    return dims == sorted(dims)


def other_dims(job: Job, *groups: Sequence[int]) -> list[int]:
    """Return the dimensions that are in none of these groups."""
    return [d for d in range(job.p.ndim) if not any(d in group for group in groups)]


# ---- layers and their pieces

Tile = tuple[int, int, int]  # matrices, rows and columns


@dataclass(frozen=True)
class ChunkSizes:
    """The sizes of the pieces that programs take."""

    chunk: int = 8192  # elements that one program takes
    block: int = 1024  # elements that it holds at a time
    lanes: int = 256  # sums that are added at a time
    wide: Tile = (1, 16, 128)  # what it holds at a time of matrices,
    grouped: Tile = (1, 16, 128)  # of those with groups of 8 bits, which are whole,
    narrow: Tile = (64, 4, 4)  # of small ones,
    single: Tile = (2048, 1, 1)  # and of those of one number
    tiles: int = 16  # such tiles that it takes, one below the other
    entries: int = 1024  # row or column statistics that one program takes
    strips: int = 32  # strips' sums that are added at a time


def layers_are_aligned(job: Job, arrays: Sequence[Tensor]) -> bool:
    """Return True if all layers begin at multiples of sixteen bytes, so that vectors can be moved."""
    layers, size = layer_counts(job)
    return all(a.data_ptr() % 16 == 0 and (layers < 2 or size * a.element_size() % 16 == 0) for a in arrays)


def layer_counts(job: Job, shape: Sequence[int] | None = None) -> tuple[int, int]:
    """Return the number of layers of a job, and of elements of each; or, with the `shape`, of the unsharded tensor."""
    shape = job.p.shape if shape is None else shape
    return prod(shape[d] for d in job.block_dims), prod(shape[d] for d in other_dims(job, job.block_dims))
