"""The pool of ranks: what comes back from it, and that nothing that happens in a rank makes a test wait for ever."""

from __future__ import annotations

import sys
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


def _warning() -> None:
    warnings.warn("something", stacklevel=1)


def test_a_warning_is_an_error(ranks):
    assert ranks.outcomes(1, _warning)[0].error == "UserWarning"


def _imported(names: Sequence[str]) -> list[str]:
    return [name for name in names if name in sys.modules]


def test_the_pytorch_front_imports_no_plotting(ranks):
    """A rank comes from a process that has imported it, and nothing but what it needs."""
    assert ranks.run(1, _imported, ("layerwise.torch", "matplotlib")) == [["layerwise.torch"]]


def _failing(weights: dict[str, torch.Tensor]) -> None:
    raise ValueError(f"{len(weights)} weights are wrong:\nall of them")


def test_the_line_that_says_what_went_wrong_comes_first_and_weights_are_cut_short(ranks):
    with pytest.raises(RanksFailed) as found:
        ranks.run(2, _failing, {str(i): torch.ones(100, 100) for i in range(5)})
    lines = str(found.value).splitlines()
    assert lines[:2] == [f"rank {i}: ValueError: 5 weights are wrong:" for i in range(2)]
    assert lines[2].startswith("_failing({'0': tensor(")
    assert max(map(len, lines)) < 400
    assert len(lines) < 30
