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
from layerwise.engines.gpu.kernels import Functions, parts
from layerwise.engines.gpu.layout import OF_TORCH, STORED, Sizes, Tile, aligned, but, in_order, misplaced, states_of
from layerwise.engines.gpu.stored import arrays_of, formats_of, remainders, unstorable
from layerwise.engines.program_types import Program
from layerwise.engines.programs import missing, program_for, rows_and_columns
from layerwise.storage.groups import GROUP

INTERPRETED = not isinstance(parts.root, triton.JITFunction)  # TRITON_INTERPRET was set: kernels run on the CPU
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
    functions: Functions
    formats: int  # of the stored numbers
    tile: Tile | None  # if rows and columns have sums and state of their own
    grouped: bool  # some state is in groups

    @property
    def compute(self) -> torch.dtype:
        return torch.float64 if self.dtypes[0] is torch.float64 else torch.float32

    @property
    def has_lines(self) -> bool:
        return self.tile is not None

    def constants(self, sizes: Sizes) -> dict[str, Any]:
        """Return them by the kernels' names, with the sizes of their pieces."""
        param, grad, *states = (STORED[dtype] for dtype in self.dtypes)
        found = {
            "PARAM": param,
            "GRAD": grad,
            "STATE_DTYPES": tuple(states),
            "STATES": len(states),
            "COMPUTE": OF_TORCH[self.compute],
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


def kind_of(job: Job, g: Tensor, sizes: Sizes) -> Kind:
    """Return the properties for which a job's kernels are compiled, with a gradient like g."""
    arrays = [job.p, g, *states_of(job)]
    moved = [*arrays, *remainders(job)]
    vector = 16 // min(a.element_size() for a in moved)
    has_lines = bool(program_for(job).lines)
    even = not has_lines or plane_of(job).columns % vector == 0
    return Kind(
        tuple(a.dtype for a in arrays),
        vector if even and aligned(job, moved) else 1,
        program_for(job),
        functions_for(job),
        formats_of(job),
        tile_of(job, sizes) if has_lines else None,
        job.grouped,
    )


def declined(job: Job) -> str:
    """Return the reason why the kernels do not take this job, or an empty string."""
    if why := missing(job):
        return why
    stored = [job.p, *(x for x in job.state if x is not None)]
    for x in stored:
        if type(x) not in BY_ADDRESS:
            return f"{type(x).__name__} is a subclass of torch.Tensor, so its memory may not hold its values"
    if job.p.device.type not in DEVICES:
        return f"the parameter is on {job.p.device}, which Triton does not support"
    coded = [id(one.array) for one in arrays_of(job) if one.is_coded]
    for x in stored:
        if x.dtype not in OF_TORCH and id(x) not in coded:
            return f"there are no kernels for {x.dtype}"
    if why := misplaced(job, states_of(job)) or unstorable(job):
        return why
    return not_planes(job) if program_for(job).lines else ""


def functions_for(job: Job) -> Functions:
    """Return the printed functions of a job."""
    rule = job.rule.__name__.rpartition(".")[2]
    module = import_module(f"layerwise.engines.gpu.printed.{rule}")
    found: Functions = module.PROGRAMS[program_for(job).name]
    return found


# ---- layers with state by rows and columns, as stacks of matrices in tiles


class Plane(NamedTuple):
    """The sizes of each layer of a job."""

    matrices: int
    rows: int
    columns: int


def plane_of(job: Job) -> Plane:
    rows, cols = rows_and_columns(job)
    rest = but(job, job.block_dims, rows, cols)
    return Plane(*(prod(job.p.shape[d] for d in group) for group in (rest, rows, cols)))


def not_planes(job: Job) -> str:
    """Return the reason why a job's layers are not stacks of matrices that kernels can walk, or an empty string."""
    (rows, cols), shape, plane = rows_and_columns(job), tuple(job.p.shape), plane_of(job)
    if not (job.p.is_contiguous() and in_order(job, job.block_dims, but(job, job.block_dims, rows, cols), rows, cols)):
        return f"{shape} is not stored as matrices, rows {rows} and columns {cols}, in this order"
    for name in program_for(job).lines:
        if not getattr(job.state, name).is_contiguous():
            return f"the state {name} is not contiguous"
    if job.grouped and plane.columns % GROUP:
        return f"rows of matrices of {shape} end inside groups of {GROUP} elements"
    return f"{shape} has more than {MOST} rows, columns or matrices" if max(plane) > MOST else ""


def tile_of(job: Job, sizes: Sizes) -> Tile:
    """Return the tile with the least overhang past the ends of a job's matrices."""
    plane = plane_of(job)
    if job.grouped:
        return sizes.grouped
    if plane.rows == plane.columns == 1:
        return sizes.single
    overhang = lambda tile: prod(-(-n // side) * side for n, side in zip(plane, tile, strict=True))  # noqa: E731
    return min(sizes.wide, sizes.narrow, key=overhang)


def chunks_along(job: Job, sizes: Sizes) -> Iterator[int]:
    """Yield the numbers of chunks of a layer for all matrices, all rows and all columns."""
    matrices, rows, columns = tile_of(job, sizes)
    for n, side in zip(plane_of(job), (matrices, rows * sizes.tiles, columns), strict=True):
        yield max(1, -(-n // side))
