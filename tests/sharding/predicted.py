"""What steps send of models of known shapes, to be compared with what was predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from sharding.counting import Collectives
from sharding.layouts import mesh_of
from torch import nn
from torch.distributed.tensor import Replicate, Shard, ones

from layerwise.torch.sharding._agreement import rooms

Lying = tuple[tuple[int, ...], tuple[int | None, ...]]  # a shape, and the dimension that each axis cuts


def sent(front: Any, parameters: Sequence[Lying], axes: Sequence[int], fused: bool | None) -> tuple[list[int], int]:
    """How many numbers each message of a step has that is like the two before it, and the bytes of all."""
    mesh = mesh_of(*axes)
    rooms.clear()  # in which larger models have been
    params = []
    for shape, cuts in parameters:
        placements = [Replicate() if cut is None else Shard(cut) for cut in cuts]
        params.append(nn.Parameter(ones(shape, device_mesh=mesh, placements=placements)))
        params[-1].grad = ones(shape, device_mesh=mesh, placements=placements)
    opt = front(params, lr=0.1, fused=fused)
    for _ in range(3):
        with Collectives() as collectives:
            opt.step()
    assert {name for name, _ in collectives.seen} <= {"allreduce_"}
    return [size for _, size in collectives.seen], collectives.bytes


class Alike:
    """A sum over ranks that all have what this one has."""

    def __init__(self, work: Any, sums: torch.Tensor, n: int) -> None:
        self.work, self.sums, self.n = work, sums, n

    def wait(self, *patience: Any) -> None:
        self.work.wait(*patience)
        self.sums.mul_(self.n)


@contextmanager
def simulated(world: int) -> Iterator[None]:
    """Be the first of so many ranks, none of the others of which exists: all of them hold the same."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    all_reduce = dist.all_reduce

    def alike(sums: torch.Tensor, group: Any = None, async_op: bool = False) -> Alike:
        assert async_op
        return Alike(all_reduce(sums, group=group, async_op=True), sums, dist.get_world_size(group))

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    mesh_of.cache_clear()
    try:
        with patch.object(dist, "all_reduce", alike):
            yield
    finally:
        mesh_of.cache_clear()
        dist.destroy_process_group()
