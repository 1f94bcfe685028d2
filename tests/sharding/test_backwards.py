"""A step in the backward pass is right, or refused before a weight has moved: no replica drifts away in silence."""

from __future__ import annotations

import pytest

from sharding import backwards

when = pytest.mark.parametrize("wrapped_first", [True, False], ids=["wrapped before", "wrapped after"])


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("options", backwards.OPTIONS)
@when
def test_ddp_is_refused(ranks, options, wrapped_first, every):
    for said, moved in ranks.run(2, backwards.ddp, options, wrapped_first, every, False):
        assert not moved
        assert "ContradictionError" in said[0]
        assert "alone=True" in said[0]


@pytest.mark.parametrize("world", [1, 2])
@when
def test_ddp_is_found_where_a_process_is_said_to_be_alone(ranks, wrapped_first, world):
    """One process alone would step twice: DistributedDataParallel gives back a gradient that was freed, as zeros."""
    for said, moved in ranks.run(world, backwards.ddp, "as it is", wrapped_first, 1, world > 1):
        assert not moved
        assert "DistributedDataParallel" in said[0]


@pytest.mark.parametrize(("wrap", "wrapped_first"), [("FSDP1", True), ("FSDP1", False), ("FSDP2", False)])
def test_sharded_models_are_refused(ranks, wrap, wrapped_first):
    """Other than those that fully_shard has cut up before the optimizer was made."""
    for said, moved in ranks.run(2, backwards.sharded, wrap, wrapped_first):
        assert not moved
        assert len(said) == 1


def test_what_wraps_an_optimizer_is_refused(ranks):
    for said in ranks.run(2, backwards.wrapping_optimizers):
        assert [one.partition(":")[0] for one in said] == ["HyperparameterError", "ContradictionError"] * 2


def test_models_of_their_own(ranks):
    assert ranks.run(2, backwards.alone) == [True, True]
