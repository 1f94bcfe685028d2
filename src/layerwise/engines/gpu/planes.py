"""Layers with a factored V as stacks of matrices in one stretch of memory, and their tiles."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple, TypeVar

from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.layout import Sizes, aligned, but, counts, in_order
from layerwise.engines.gpu.stored import is_grouped, remainders, rows_of
from layerwise.storage.groups import GROUP

MOST = 1 << 30  # along an axis, so that its numbers fit into 32 bits


T = TypeVar("T", bound=tuple[int, ...])


def cuts_groups(job: Job) -> bool:
    """Return True if tiles would cut groups of the momentum."""
    plane = plane_of(job)
    return is_grouped(job) and (rows_of(job)[1] if plane.rows == plane.columns == 1 else plane.columns) % GROUP != 0


class Plane(NamedTuple):
    """The sizes of each layer of a job."""

    matrices: int
    rows: int
    columns: int


def plane_of(job: Job) -> Plane:
    rows, cols = job.h.factored
    rest = but(job, job.block_dims, rows, cols)
    return Plane(*(prod(job.p.shape[d] for d in group) for group in (rest, rows, cols)))


def not_planes(job: Job) -> str:
    """Return the reason why a job's layers are not stacks of matrices that kernels can walk, or an empty string."""
    (rows, cols), shape = job.h.factored, tuple(job.p.shape)
    if not (job.p.is_contiguous() and in_order(job, job.block_dims, but(job, job.block_dims, rows, cols), rows, cols)):
        return f"{shape} does not lie in memory as matrices, rows {rows} and columns {cols}, in this order"
    for name in ("exp_avg_sq_row", "exp_avg_sq_col"):
        if not getattr(job.state, name).is_contiguous():
            return f"the state {name} is not contiguous"
    if cuts_groups(job):
        return f"rows of {shape} end within groups of {GROUP} elements, of which tiles are made"
    return f"{shape} has more than {MOST} rows, columns or matrices" if max(plane_of(job)) > MOST else ""


def _across(plane: Plane) -> int:
    """Return the number of elements of a tile that follow one another in memory."""
    return plane.matrices if plane.rows == plane.columns == 1 else plane.columns


class Tiling(NamedTuple):
    """The division of a plane into tiles."""

    tile: tuple[int, int, int]  # matrices, rows and columns
    vector: int  # elements that can be moved at once

    def tiles(self, plane: Plane, depth: int) -> tuple[int, int, int]:
        """Return the numbers of programs for all matrices, all rows and all columns, each `depth` tiles of rows."""
        m, r, c = self.tile
        matrices, rows, columns = (max(1, -(-n // side)) for n, side in zip(plane, (m, r * depth, c), strict=True))
        return matrices, rows, columns


def tiling_of(job: Job, arrays: Sequence[Tensor], sizes: Sizes) -> Tiling:
    """Choose the tiles of a job with these operands."""
    arrays = [*arrays, *remainders(job)]
    plane, n = plane_of(job), 16 // min(a.element_size() for a in arrays)
    single, even = plane.rows == plane.columns == 1, _across(plane) % n == 0
    tiles = (sizes.wide,) if is_grouped(job) else (sizes.wide, sizes.narrow)
    tile = sizes.single if single else fitting(plane, *tiles)
    return Tiling(tile, n if even and counts(job)[1] and aligned(job, arrays) else 1)


def share_of(plane: Plane, statistics: int, sizes: Sizes) -> tuple[int, int]:
    """Return the number of matrices, and of statistics of each, that a program takes."""
    if plane.rows == plane.columns == 1:
        return sizes.entries, 1
    return fitting(
        (plane.matrices, statistics), (1, sizes.entries), (sizes.entries // sizes.narrow[1], sizes.narrow[1])
    )


def fitting(lengths: Sequence[int], *shapes: T) -> T:
    """Return the shape with the least overhang past the ends."""
    return min(shapes, key=lambda shape: prod(-(-n // side) * side for n, side in zip(lengths, shape, strict=True)))
