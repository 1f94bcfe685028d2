"""Kinds: what the kernels of some layers are compiled for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.kernels import planes
from layerwise.engines.gpu.layout import OF_TORCH, STORED, Sizes, Tile, aligned
from layerwise.engines.gpu.planes import is_factored, is_tiled, plane_of, tile_of
from layerwise.engines.gpu.program import Functions, functions_for, states_of
from layerwise.engines.gpu.stored import formats_of, is_grouped, remainders
from layerwise.engines.programs import program_for, rounds_of
from layerwise.engines.structures import Program

WARPS = 8  # of kernels that hold a tile


@dataclass(frozen=True)
class Kind:
    """What the kernels of some layers are compiled for."""

    dtypes: tuple[torch.dtype, ...]  # of the operands
    vector: int  # elements that can be moved at once
    program: Program
    functions: Functions
    formats: int  # of what is stored
    tile: Tile | None  # for those that are walked in tiles
    grouped: bool  # some state is in groups
    factored: bool  # the second moment is
    clamps: bool  # that moment

    @property
    def compute(self) -> torch.dtype:
        return torch.float64 if self.dtypes[0] is torch.float64 else torch.float32

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
            "TILED": self.tile is not None,
        }
        if self.tile is None:
            return found | {"CHUNK": sizes.chunk, "BLOCK": sizes.block, "SHAPE": (sizes.block,), "FULL": True}
        _, rows, _ = self.tile
        found |= {"CHUNK": rows * sizes.tiles, "BLOCK": rows, "SHAPE": self.tile, "FULL": False}
        found |= {"VECTOR": self.vector, "GROUPED": self.grouped, "CLAMPS": self.clamps}
        return found | {"num_warps": WARPS}


def kind_of(job: Job, g: Tensor, sizes: Sizes) -> Kind:
    """Return what a job's kernels are compiled for, with a gradient like g."""
    arrays, factored = [job.p, g, *states_of(job)], is_factored(job)
    moved = [*arrays, *remainders(job)]
    vector = 16 // min(a.element_size() for a in moved)
    even = not is_tiled(job) or plane_of(job).columns % vector == 0
    return Kind(
        tuple(a.dtype for a in arrays),
        vector if even and aligned(job, moved) else 1,
        program_for(job),
        functions_for(job),
        formats_of(job),
        tile_of(job, sizes) if is_tiled(job) else None,
        is_grouped(job),
        factored,
        factored and job.h.eps_mode == "clamp" and job.h.eps[0] > 0,
    )
