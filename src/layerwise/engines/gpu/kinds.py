"""Kinds: what the kernels of some layers are compiled for; and the jobs that kernels do not take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.kernels import parts, planes
from layerwise.engines.gpu.layout import OF_TORCH, STORED, Sizes, Tile, aligned, misplaced
from layerwise.engines.gpu.planes import is_factored, not_planes, plane_of, tile_of
from layerwise.engines.gpu.program import Functions, functions_for, states_of
from layerwise.engines.gpu.stored import arrays_of, formats_of, is_grouped, remainders, unstorable
from layerwise.engines.programs import missing, program_for, rounds_of
from layerwise.engines.structures import Program

INTERPRETED = not isinstance(parts.root, triton.JITFunction)  # TRITON_INTERPRET was set: kernels run on the CPU
BY_ADDRESS = (torch.Tensor, torch.nn.Parameter)  # the types of tensors that lie where they say
DEVICES = ("cuda", *(("cpu",) if INTERPRETED else ()))  # what is tested; ROCm calls itself cuda
WARPS = 8  # of kernels that hold a tile


@dataclass(frozen=True)
class Kind:
    """What the kernels of some layers are compiled for."""

    dtypes: tuple[torch.dtype, ...]  # of the operands
    vector: int  # elements that can be moved at once
    program: Program
    functions: Functions
    formats: int  # of what is stored
    tile: Tile | None  # if the second moment is factored
    grouped: bool  # some state is in groups

    @property
    def compute(self) -> torch.dtype:
        return torch.float64 if self.dtypes[0] is torch.float64 else torch.float32

    @property
    def factored(self) -> bool:
        return self.tile is not None

    @property
    def rounds(self) -> tuple[tuple[str, ...], ...]:
        return rounds_of(self.program, self.factored)

    def first(self, number: int) -> int:
        """Return the first total of a round."""
        return len(sum(self.rounds[:number], ()))

    def terms(self, number: int) -> Any:
        return planes.updates if self.factored else self.functions.terms[number]

    def constants(self, sizes: Sizes) -> dict[str, Any]:
        """Return the same by the names that kernels have for it, and the sizes of their pieces."""
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
            "FACTORED": self.factored,
        }
        if self.tile is None:
            return found | {"CHUNK": sizes.chunk, "BLOCK": sizes.block, "SHAPE": (sizes.block,), "FULL": True}
        _, rows, _ = self.tile
        found |= {"CHUNK": rows * sizes.tiles, "BLOCK": rows, "SHAPE": self.tile, "FULL": False}
        found |= {"VECTOR": self.vector, "GROUPED": self.grouped}
        return found | {"num_warps": WARPS}


def kind_of(job: Job, g: Tensor, sizes: Sizes) -> Kind:
    """Return what a job's kernels are compiled for, with a gradient like g."""
    arrays = [job.p, g, *states_of(job)]
    moved = [*arrays, *remainders(job)]
    vector = 16 // min(a.element_size() for a in moved)
    factored = is_factored(job)
    even = not factored or plane_of(job).columns % vector == 0
    return Kind(
        tuple(a.dtype for a in arrays),
        vector if even and aligned(job, moved) else 1,
        program_for(job),
        functions_for(job),
        formats_of(job),
        tile_of(job, sizes) if factored else None,
        is_grouped(job),
    )


def declined(job: Job) -> str:
    """Return the reason why the kernels do not take this job, or an empty string."""
    if why := missing(job):
        return why
    stored = [job.p, *(x for x in job.state if x is not None)]
    for x in stored:
        if type(x) not in BY_ADDRESS:
            return f"{type(x).__name__} is a subclass of torch.Tensor, whose memory need not hold its numbers"
    if job.p.device.type not in DEVICES:
        return f"the parameter is on {job.p.device}, which Triton does not support"
    coded = [id(one.array) for one in arrays_of(job) if one.is_coded]
    for x in stored:
        if x.dtype not in OF_TORCH and id(x) not in coded:
            return f"there are no kernels for {x.dtype}"
    if why := misplaced(job, states_of(job)) or unstorable(job):
        return why
    return not_planes(job) if is_factored(job) else ""
