"""What test_ranks.py has the ranks do."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Sequence

import torch
import torch.distributed as dist


def add_up(more: float) -> tuple[int, int, float]:
    rank, world = dist.get_rank(), dist.get_world_size()
    total = torch.tensor(rank + more)
    dist.all_reduce(total)
    return rank, world, total.item()


def raise_on(rank: int) -> None:
    if dist.get_rank() == rank:
        1 / 0  # noqa: B018
    dist.all_reduce(torch.ones(1))


def die_on(rank: int) -> None:
    if dist.get_rank() == rank:
        os._exit(7)
    dist.all_reduce(torch.ones(1))


def hang_on(rank: int) -> None:
    if dist.get_rank() == rank:
        time.sleep(1000)


def warn() -> None:
    warnings.warn("something", stacklevel=1)


def imported(names: Sequence[str]) -> list[str]:
    """Return those of the modules that the rank has imported."""
    return [name for name in names if name in sys.modules]
