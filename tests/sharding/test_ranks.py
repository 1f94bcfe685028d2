"""The pool of ranks: what comes back from it, and that nothing that happens in a rank makes a test wait for ever."""

from __future__ import annotations

import pytest
from sharding.ranks import RanksFailed

from sharding import behaviours


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_each_rank_answers(ranks, world):
    wanted = [(rank, world, sum(range(world)) + 10.0 * world) for rank in range(world)]
    assert ranks.run(world, behaviours.add_up, 10.0) == wanted


def test_an_exception_reaches_the_test_and_frees_the_others(ranks):
    found = ranks.outcomes(3, behaviours.raise_on, 1)
    assert found[1].error == "ZeroDivisionError"
    assert "raise_on" in found[1].traceback
    assert all(one.error for one in found)
    with pytest.raises(RanksFailed, match=r"rank 1: (.|\n)*ZeroDivisionError"):
        ranks.run(3, behaviours.raise_on, 1)
    assert len(ranks.run(3, behaviours.add_up, 1.0)) == 3


def test_a_rank_that_dies_is_reported_and_replaced(ranks):
    found = ranks.outcomes(2, behaviours.die_on, 1)
    assert found[1].error == "died"
    assert "exit code 7" in found[1].traceback
    assert found[0].error == "RuntimeError"
    assert len(ranks.run(2, behaviours.add_up, 1.0)) == 2


def test_a_rank_that_hangs_says_where(ranks):
    with pytest.raises(RanksFailed, match=r"rank 1 hangs(.|\n)*hang_on"):
        ranks.run(2, behaviours.hang_on, 1, timeout=2.0)
    assert len(ranks.run(2, behaviours.add_up, 1.0)) == 2


def test_a_warning_is_an_error(ranks):
    assert ranks.outcomes(1, behaviours.warn)[0].error == "UserWarning"


def test_the_pytorch_front_imports_no_plotting(ranks):
    """A rank comes from a process that has imported it, and nothing but what it needs."""
    assert ranks.run(1, behaviours.imported, ("layerwise.torch", "matplotlib")) == [["layerwise.torch"]]
