"""A model that is sharded after its optimizer was made: the optimizer says so, or steps what it is given instead."""

from __future__ import annotations

import pytest

from sharding import replaced


@pytest.mark.parametrize("wrapper", replaced.WRAPPERS)
def test_it_says_so(ranks, wrapper):
    for said, moved in ranks.run(replaced.WRAPPERS[wrapper][0], replaced.made_before, wrapper, True):
        assert not moved
        assert said.startswith("ParameterError")
        assert "fully_shard" in said


def test_without_names(ranks):
    for said, moved in ranks.run(2, replaced.made_before, "FSDP2", False):
        assert not moved
        assert "no longer a parameter of its model" in said


def test_on_one_process(ranks):
    said, moved = ranks.run(1, replaced.made_before, "FSDP2", True)[0]
    assert not moved
    assert "no longer a parameter of its model" in said


@pytest.mark.parametrize("trained", [False, True])
def test_another_model_with_a_parameter_of_that_name_and_shape(ranks, trained):
    assert ranks.run(2, replaced.beside_another_model, trained) == [True, True]


def test_new_parameters_put_in_the_groups_are_stepped(ranks):
    """As Accelerate does it, before the first step."""
    assert ranks.run(2, replaced.changed_by_hand, 0) == [("", True)] * 2


def test_new_parameters_that_leave_their_state_behind(ranks):
    for said, _ in ranks.run(2, replaced.changed_by_hand, 1):
        assert said.startswith("ParameterError")
        assert "state stayed" in said
