"""The local parts of a cut tensor: each is a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from layerwise.core.plan import LocalPart, PartSlices, Places, Region
from layerwise.layout.pieces import Kept, Layout, Piece
from layerwise.torch.sharding._cuts import Axis, Cut, is_dtensor

Shape = tuple[int, ...]
CPU = torch.device("cpu")


def parts_of_cut(
    layout: Layout, kept: Mapping[str, Kept | None], cut: Cut | None, replicas: tuple[Axis, ...]
) -> tuple[LocalPart, ...]:
    """Return the local parts of a tensor's pieces. Every rank has all blocks along an axis that is cut, some empty."""
    if cut is None or not cut.axes:
        return tuple(LocalPart(piece, i, replicas=replicas) for i, piece in enumerate(layout.pieces))
    return tuple(_held(piece, i, kept, cut) for i, piece in enumerate(layout.pieces))


def _held(piece: Piece, number: int, kept: Mapping[str, Kept | None], cut: Cut) -> LocalPart:
    part, axes, place, places = piece.part, cut.axes, None, dict[str, PartSlices]()
    blocks: tuple[list[int], ...] = ()
    if part is not None and part.one is not None and cut.cuts(part.axis):
        i, start, end, length = part.one
        here = [at for at, entry in enumerate(cut.local_indices(part.axis, length)) if start <= entry < end]
        before = (slice(None),) * part.axis
        place = PartSlices((*before, slice(here[0], here[-1] + 1) if here else slice(0, 0)))
        one = PartSlices((*before, slice(i, i + 1)))  # of a statistic with a number for each block
        places = {key: one for key, extends in kept.items() if extends is not None and not extends[part.axis]}
    elif part is not None and part.drop and any(map(cut.cuts, part.dims())):
        blocks = tuple(cut.local_indices(d, piece.shape[d]) for d in sorted(part.dims()))
    elif part is not None and part.one is None and not part.drop:
        axes = tuple((axis, d + (d > part.axis)) for axis, d in axes)
    where = axes, piece.shape, cut.parts, blocks, place, places
    regions = partial(_regions_of_cut, piece, cut, tuple(d for _, d in axes))
    return LocalPart(piece, number, 0, *where, regions=regions, replicas=cut.replicas)


def _regions_of_cut(piece: Piece, cut: Cut, own: Shape, places: Places, dims: Shape) -> list[Region]:
    """Return the part of a piece on the rank at these places along the axes, which cut these dimensions of it."""
    part, each = piece.part, list[Sequence[int]](range(n) for n in piece.shape)
    for (_, d), dim in zip(cut.axes, own, strict=True):
        if part is not None and part.one is not None and d == part.axis:
            _, start, end, length = part.one
            each[dim] = [i - start for i in cut.local_indices(d, length, places) if start <= i < end]
        else:
            each[dim] = cut.local_indices(d, piece.shape[dim], places)
    each = [some if d in dims else range(len(some)) for d, some in enumerate(each)]
    runs = [range(some[0], some[0] + len(some)) if some else range(0) for some in each]
    if all(some == run or list(some) == list(run) for some, run in zip(each, runs, strict=True)):
        return [tuple(slice(run.start, run.stop) for run in runs)]
    return [torch.meshgrid(*(torch.tensor(some, dtype=torch.long) for some in each), indexing="ij")]


def on_host(x: Any) -> Tensor:
    """Return a whole tensor in host memory; for a DTensor all ranks call this together."""
    whole: Tensor = x.full_tensor() if is_dtensor(x) else x
    return whole.detach().to(CPU, copy=True)
