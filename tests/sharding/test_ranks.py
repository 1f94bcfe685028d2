"""The pool of ranks: what comes back from it, and that nothing that happens in a rank makes a test wait for ever."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from sharding.ranks import RanksFailed


def _added(more: float) -> tuple[int, int, float]:
    rank, world = dist.get_rank(), dist.get_world_size()
    total = torch.tensor(rank + more)
    dist.all_reduce(total)
    return rank, world, total.item()


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_each_rank_answers(ranks, world):
    wanted = [(rank, world, sum(range(world)) + 10.0 * world) for rank in range(world)]
    assert ranks.run(world, _added, 10.0) == wanted


def _ending(dies: bool) -> None:
    if dist.get_rank() == 1:
        os._exit(7) if dies else 1 / 0
    dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize(("dies", "own", "said"), [(False, "ZeroDivisionError", "_ending"), (True, "died", "code 7")])
def test_a_rank_that_ends_is_reported_and_replaced_and_frees_the_others(ranks, dies, own, said):
    found = ranks.outcomes(3, _ending, dies)
    assert found[1].error == own
    assert said in found[1].traceback
    assert all(one.error for one in found)
    with pytest.raises(RanksFailed, match=rf"rank 1: (.|\n)*{said}"):
        ranks.run(3, _ending, dies)
    assert len(ranks.run(3, _added, 1.0)) == 3


def _hanging() -> None:
    if dist.get_rank() == 1:
        time.sleep(1000)


def test_a_rank_that_hangs_says_where(ranks):
    with pytest.raises(RanksFailed, match=r"rank 1 hangs(.|\n)*_hanging"):
        ranks.run(2, _hanging, timeout=1.0)
    assert len(ranks.run(2, _added, 1.0)) == 2


def _warning() -> None:
    warnings.warn("something", stacklevel=1)


def test_a_warning_is_an_error(ranks):
    assert ranks.outcomes(1, _warning)[0].error == "UserWarning"


def _imported(names: Sequence[str]) -> list[str]:
    return [name for name in names if name in sys.modules]


def test_the_pytorch_front_imports_no_plotting(ranks):
    """A rank comes from a process that has imported it, and nothing but what it needs."""
    assert ranks.run(1, _imported, ("layerwise.torch", "matplotlib")) == [["layerwise.torch"]]
