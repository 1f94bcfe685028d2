"""Kinds: the properties for which kernels are compiled; and the jobs that kernels do not take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.kernels import PrintedFunctions, common
from layerwise.engines.gpu.layout import (
    OF_TORCH,
    STORED,
    ChunkSizes,
    Tile,
    dims_are_in_order,
    layers_are_aligned,
    other_dims,
    states_of,
    why_not_stretches,
)
from layerwise.engines.gpu.operand_formats import formatted_operands, operand_forms, remainders, why_unstorable
from layerwise.engines.program_types import Program
from layerwise.engines.programs import program_for, rows_and_columns, why_not_printed
from layerwise.storage.quantized_groups import GROUP

INTERPRETED = not isinstance(common.root, triton.JITFunction)  # TRITON_INTERPRET was set: kernels run on the CPU
BY_ADDRESS = (torch.Tensor, torch.nn.Parameter)  # the types of tensors whose memory is where they say
DEVICES = ("cuda", *(("cpu",) if INTERPRETED else ()))  # tested devices; ROCm calls itself cuda
WARPS = 8  # of kernels that hold a tile
MOST = 1 << 30  # along an axis, so that its numbers fit into 32 bits


@dataclass(frozen=True)
class Kind:
    """The properties for which the kernels of some layers are compiled."""

    dtypes: tuple[torch.dtype, ...]  # of the operands
    vector: int  # elements that can be moved at once
    program: Program
    functions: PrintedFunctions
    formats: int  # of the stored numbers
    tile: Tile | None  # if rows and columns have sums and state of their own
    grouped: bool  # some state is in groups

    @property
    def compute_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtypes[0] is torch.float64 else torch.float32

    @property
    def has_lines(self) -> bool:
        return self.tile is not None

    def constants(self, sizes: ChunkSizes) -> dict[str, Any]:
        """Return them by the kernels' names, with the sizes of their pieces."""
        param, grad, *states = (STORED[dtype] for dtype in self.dtypes)
        found = {
            "PARAM": param,
            "GRAD": grad,
            "STATE_DTYPES": tuple(states),
            "STATES": len(states),
            "COMPUTE": OF_TORCH[self.compute_dtype],
            "FORMATS": self.formats,
            "VALUES": self.functions.values,
            "ALIGNED": self.vector > 1,
            "LINES": self.has_lines,
        }
        if self.tile is None:
            return found | {"CHUNK": sizes.chunk, "BLOCK": sizes.block, "SHAPE": (sizes.block,), "FULL": True}
        _, rows, _ = self.tile
        found |= {"CHUNK": rows * sizes.tiles, "BLOCK": rows, "SHAPE": self.tile, "FULL": False}
        found |= {"VECTOR": self.vector, "GROUPED": self.grouped}
        return found | {"num_warps": WARPS}


def kind_of(job: Job, g: Tensor, sizes: ChunkSizes) -> Kind:
    """Return the properties for which a job's kernels are compiled, with a gradient like g."""
    arrays = [job.p, g, *states_of(job)]
    moved = [*arrays, *remainders(job)]
    vector = 16 // min(a.element_size() for a in moved)
    has_lines = bool(program_for(job).lines)
    even = not has_lines or matrix_sizes(job).columns % vector == 0
    return Kind(
        tuple(a.dtype for a in arrays),
        vector if even and layers_are_aligned(job, moved) else 1,
        program_for(job),
        functions_for(job),
        operand_forms(job),
        tile_of(job, sizes) if has_lines else None,
        job.grouped,
    )


def why_declined(job: Job) -> str:
    """Return the reason why the kernels do not take this job, or an empty string."""
    if why := why_not_printed(job):
        return why
    stored = [job.p, *(x for x in job.state if x is not None)]
    for x in stored:
        if type(x) not in BY_ADDRESS:
            return f"{type(x).__name__} is a subclass of torch.Tensor, so its memory may not hold its values"
    if job.p.device.type not in DEVICES:
        return f"the parameter is on {job.p.device}, which Triton does not support"
    coded = [id(one.array) for one in formatted_operands(job) if one.is_coded]
    for x in stored:
        if x.dtype not in OF_TORCH and id(x) not in coded:
            return f"there are no kernels for {x.dtype}"
    if why := why_not_stretches(job, states_of(job)) or why_unstorable(job):
        return why
    return why_not_matrices(job) if program_for(job).lines else ""


def functions_for(job: Job) -> PrintedFunctions:
    """Return the printed functions of a job."""
    rule = job.rule.__name__.rpartition(".")[2]
    module = import_module(f"layerwise.engines.gpu.printed.{rule}")
    found: PrintedFunctions = module.PROGRAMS[program_for(job).name]
    return found


# ---- layers with state by rows and columns, as stacks of matrices in tiles


class MatrixSizes(NamedTuple):
    """The sizes of each layer of a job."""

    matrices: int
    rows: int
    columns: int


def matrix_sizes(job: Job) -> MatrixSizes:
    rows, cols = rows_and_columns(job)
    rest = other_dims(job, job.block_dims, rows, cols)
    return MatrixSizes(*(prod(job.p.shape[d] for d in group) for group in (rest, rows, cols)))


def why_not_matrices(job: Job) -> str:
    """Return the reason why a job's layers are not stacks of matrices that kernels can walk, or an empty string."""
    (rows, cols), shape, plane = rows_and_columns(job), tuple(job.p.shape), matrix_sizes(job)
    if not (
        job.p.is_contiguous()
        and dims_are_in_order(job, job.block_dims, other_dims(job, job.block_dims, rows, cols), rows, cols)
    ):
        return f"{shape} is not stored as matrices, rows {rows} and columns {cols}, in this order"
    for name in program_for(job).lines:
        if not getattr(job.state, name).is_contiguous():
            return f"the state {name} is not contiguous"
    if job.grouped and plane.columns % GROUP:
        return f"rows of matrices of {shape} end inside groups of {GROUP} elements"
    return f"{shape} has more than {MOST} rows, columns or matrices" if max(plane) > MOST else ""


def tile_of(job: Job, sizes: ChunkSizes) -> Tile:
    """Return the tile with the least overhang past the ends of a job's matrices."""
    plane = matrix_sizes(job)
    if job.grouped:
        return sizes.grouped
    if plane.rows == plane.columns == 1:
        return sizes.single
    overhang = lambda tile: prod(-(-n // side) * side for n, side in zip(plane, tile, strict=True))  # noqa: E731
    return min(sizes.wide, sizes.narrow, key=overhang)


def chunks_along(job: Job, sizes: ChunkSizes) -> Iterator[int]:
    """Yield the numbers of chunks of a layer for all matrices, all rows and all columns."""
    matrices, rows, columns = tile_of(job, sizes)
    for n, side in zip(matrix_sizes(job), (matrices, rows * sizes.tiles, columns), strict=True):
        yield max(1, -(-n // side))
