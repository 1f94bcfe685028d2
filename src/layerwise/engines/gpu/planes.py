"""Layers with a factored V, as stacks of matrices in tiles."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from layerwise.engines import Job
from layerwise.engines.gpu.layout import Sizes, Tile, but, in_order
from layerwise.engines.gpu.stored import is_grouped
from layerwise.storage.groups import GROUP

MOST = 1 << 30  # along an axis, so that its numbers fit into 32 bits


class Plane(NamedTuple):
    """The sizes of each layer of a job."""

    matrices: int
    rows: int
    columns: int


def is_factored(job: Job) -> bool:
    return bool(getattr(job.h, "factored", False))


def plane_of(job: Job) -> Plane:
    rows, cols = job.h.factored
    rest = but(job, job.block_dims, rows, cols)
    return Plane(*(prod(job.p.shape[d] for d in group) for group in (rest, rows, cols)))


def not_planes(job: Job) -> str:
    """Return the reason why a job's layers are not stacks of matrices that kernels can walk, or an empty string."""
    (rows, cols), shape, plane = job.h.factored, tuple(job.p.shape), plane_of(job)
    if not (job.p.is_contiguous() and in_order(job, job.block_dims, but(job, job.block_dims, rows, cols), rows, cols)):
        return f"{shape} does not lie in memory as matrices, rows {rows} and columns {cols}, in this order"
    for name in ("exp_avg_sq_row", "exp_avg_sq_col"):
        if not getattr(job.state, name).is_contiguous():
            return f"the state {name} is not contiguous"
    if is_grouped(job) and plane.columns % GROUP:
        return f"rows of matrices of {shape} end within groups of {GROUP} elements"
    return f"{shape} has more than {MOST} rows, columns or matrices" if max(plane) > MOST else ""


def tile_of(job: Job, sizes: Sizes) -> Tile:
    """Return the tile with the least overhang past the ends of a job's matrices."""
    plane = plane_of(job)
    if is_grouped(job):
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
