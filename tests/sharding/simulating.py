"""The first rank of a large job, none of the others of which exists."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from sharding.layouts import mesh_of


@contextmanager
def simulated(world: int) -> Iterator[None]:
    """Be the first of so many ranks, in a process group that sends nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    mesh_of.cache_clear()
    try:
        yield
    finally:
        mesh_of.cache_clear()
        dist.destroy_process_group()
