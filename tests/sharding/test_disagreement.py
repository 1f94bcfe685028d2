"""Ranks that disagree find it out together: all of them raise, or all skip, and none waits for ever."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest
import torch
from cases import CASES
from sharding.models import FRONT_OF, FRONTS, KERNELED, TOLERANCE, close, same

from layerwise.engines.compiled import _native
from layerwise.torch import Lamb
from sharding import disagreements, runs

fronts = pytest.mark.parametrize("front", FRONTS)
ASKING = [FRONT_OF[case.name] for case in CASES if case.rounds]  # of those, some send more than one message
TOGETHER = "SynchronizationError"
OWN = {
    "plain state": "StateError",
    "broken state": "StateError",
    "forbidden lr": "HyperparameterError",
    "missing option": "KeyError",
    "failing hook": "ZeroDivisionError",
}  # what the odd rank has to say of itself; the others say it was that rank
OVER_REPLICAS = ["hybrid", "hybrid in part"]  # the replicas of ranks that hold parts agree as those do
# One of each kind: what skips, what a rank finds by itself, sums that others do not send, and other settings.
KINDS = {"found_inf", "broken state", "no gradient", "lr"}
GRADIENTS = {"no gradient", "no gradients", "arrived"}  # changes of these, which the message names
SOON = 30.0  # seconds


@pytest.mark.parametrize(
    ("front", "layout", "change"),
    [
        *((front, "fsdp on 2", change) for front in FRONTS for change in disagreements.CHANGES),
        # How a report travels does not depend on what else is in it.
        *(
            pytest.param(Lamb, layout, change, marks=() if change in KINDS else pytest.mark.slow)
            for layout in (*OVER_REPLICAS, "two-dimensional")
            for change in disagreements.CHANGES
        ),
    ],
)
@pytest.mark.thinned(1, 2)
def test_all_raise_and_nothing_has_changed(ranks, front, layout, change):
    world = runs.layout_of(layout)[0]
    found = ranks.run(world, disagreements.disagreeing, front, layout, change, timeout=SOON)
    wanted = [TOGETHER] * world
    wanted[disagreements.ODD] = OWN.get(change, TOGETHER)
    assert [error for error, *_ in found] == wanted
    assert all(untouched for _, _, untouched, _ in found)
    agreed = runs.stepped(front, None, torch.float64, {})
    for *_, outcome in found:
        close(outcome, agreed, TOLERANCE[torch.float64])


@pytest.mark.parametrize("change", disagreements.REDISTRIBUTED)
def test_all_raise_where_gradients_would_have_to_be_redistributed(ranks, change):
    """Which takes collectives that a rank with another step does not join."""
    layout, world = "tensor parallel on 2", 2
    found = ranks.run(world, disagreements.disagreeing, Lamb, layout, change, runs.in_partial_sums, timeout=SOON)
    assert [error for error, *_ in found] == [TOGETHER, OWN.get(change, TOGETHER)]
    assert all(untouched for _, _, untouched, _ in found)
    assert change not in GRADIENTS or "the gradient of" in found[0][1]
    for *_, outcome in found:
        close(outcome, runs.stepped(Lamb, None, torch.float64, {}), TOLERANCE[torch.float64])


@fronts
@pytest.mark.thinned(1, 2)
def test_a_first_step_that_is_not_taken_leaves_nothing(ranks, front):
    found = ranks.run(2, disagreements.at_first, front, "fsdp on 2", timeout=SOON)
    assert [(error, kept) for error, kept, _ in found] == [(TOGETHER, 0)] * 2
    agreed = runs.stepped(front, None, torch.float64, {})
    for *_, outcome in found:
        close(outcome, agreed, TOLERANCE[torch.float64])


def test_the_message_says_what_and_where(ranks):
    found = ranks.run(2, disagreements.disagreeing, Lamb, "fsdp on 2", "no gradient", timeout=SOON)
    assert all(disagreements.NAME in message for _, message, *_ in found)


@pytest.mark.parametrize("change", OWN)
def test_the_others_are_told_what_one_rank_has_found_wrong(ranks, change):
    (_, told, *_), (_, own, *_) = ranks.run(2, disagreements.disagreeing, Lamb, "fsdp on 2", change, timeout=SOON)
    assert f"rank {disagreements.ODD} cannot take the step" in told
    assert own.rstrip(".") in told


def test_the_message_names_the_scale_of_the_gradients(ranks):
    found = ranks.run(2, disagreements.scaled, Lamb, "fsdp on 2", timeout=SOON)
    assert all("grad_scale is 2.0 on one and 4.0 on the other" in message for message in found)


def test_a_rank_with_another_version(ranks):
    found = ranks.run(2, disagreements.with_another_version, Lamb, "fsdp on 2", timeout=SOON)
    assert all("the version of layerwise is" in message and "0.0.1" in message for message in found)


@pytest.mark.parametrize("layout", ["fsdp on 2", "two-dimensional"])
def test_a_rank_without_a_model_group(ranks, layout):
    """The others do not wait for it, neither those that share parts with it nor those that hear of it from them."""
    found = ranks.run(runs.layout_of(layout)[0], disagreements.without_a_model_group, Lamb, layout, timeout=SOON)
    assert all(message.startswith(TOGETHER) and untouched for message, untouched in found)
    assert "model_group is there on one and missing on the other" in found[disagreements.ODD][0]


@pytest.mark.skipif(_native is None, reason="there is one engine alone")
@pytest.mark.parametrize("front", KERNELED)
@pytest.mark.needs("max_grad_norm")
@pytest.mark.thinned(1, 2)
def test_ranks_that_are_stepped_by_different_engines(ranks, front):
    found = ranks.run(2, disagreements.by_different_engines, front, "fsdp on 2", timeout=SOON)
    assert all("what steps it is the compiled engine on one and the rule" in message for message in found)


@fronts
@pytest.mark.thinned(1, 2)
@pytest.mark.parametrize("spread", [disagreements.as_given, runs.in_partial_sums])
def test_one_rank_may_load_a_checkpoint_alone(ranks, front, spread):
    """What it loads is what it had; it only has to lay it out anew."""
    found = ranks.run(2, disagreements.reloading, front, "fsdp on 2", spread, timeout=SOON)
    for outcome in found:
        close(outcome, runs.stepped(front, None, torch.float64, {}), TOLERANCE[torch.float64])


@pytest.mark.parametrize("layout", ["fsdp on 2", "several meshes", *OVER_REPLICAS])
@fronts
@pytest.mark.thinned(1, 2)
def test_an_optimizer_that_one_rank_makes_again(ranks, front, layout):
    """It has no state, and has sent nothing yet, while the others send sums."""
    found = ranks.run(
        runs.layout_of(layout)[0], partial(disagreements.made_again, loaded=False), front, layout, timeout=SOON
    )
    agreed = runs.stepped(front, None, torch.float64, {})
    for error, untouched, outcome in found:
        assert (error, untouched) == (TOGETHER, True)
        close(outcome, agreed, TOLERANCE[torch.float64])


@fronts
@pytest.mark.thinned(1, 2)
def test_it_goes_on_with_the_others_once_it_has_its_state(ranks, front):
    # Of three: where a single one is left, what it has sent meanwhile is its own again.
    found = ranks.run(3, partial(disagreements.made_again, loaded=True), front, "fsdp on 3", timeout=SOON)
    agreed = runs.stepped(front, None, torch.float64, {})
    for error, _, outcome in found:
        assert error == "NoneType"
        close(outcome, agreed, TOLERANCE[torch.float64])


def test_a_closure_that_fails_on_one_rank(ranks):
    found = ranks.outcomes(2, partial(disagreements.with_closures, sending=False), Lamb, "fsdp on 2", timeout=SOON)
    assert [one.error for one in found] == [TOGETHER, "ArithmeticError"]


def test_a_closure_that_fails_where_the_others_are_within_theirs(ranks):
    """They wait for a collective of its, not of ours; so the rank that fails says so at once, and alone."""
    found = ranks.outcomes(2, partial(disagreements.with_closures, sending=True), Lamb, "fsdp on 2", timeout=8.0)
    assert [one.error for one in found] == ["RuntimeError", "ArithmeticError"]


@pytest.fixture(scope="module")
def without_the_spoiled_step(ranks):
    """What comes of the steps that are not skipped, found once for each optimizer and layout."""
    return cache(
        lambda front, layout: ranks.run(runs.layout_of(layout)[0], disagreements.skipping, front, layout, None)
    )


@pytest.mark.parametrize(
    ("front", "layout", "spoil"),
    [
        # Which ranks have to agree depends on the layout alone, whatever the optimizer and what spoils the gradients.
        pytest.param(
            front,
            layout,
            spoil,
            marks=()
            if (front is Lamb and spoil is disagreements.with_nan) or layout == "fsdp on 2"
            else pytest.mark.slow,
        )
        for front in FRONTS
        for layout in ("fsdp on 2", "two-dimensional", "several meshes", *OVER_REPLICAS)
        for spoil in (disagreements.with_nan, disagreements.with_inf_found)
    ],
)
@pytest.mark.thinned(1, 2)
def test_all_skip(ranks, without_the_spoiled_step, front, layout, spoil):
    world = runs.layout_of(layout)[0]
    found = ranks.run(world, disagreements.skipping, front, layout, spoil, timeout=SOON)
    assert [skipped for skipped, _ in found] == [1] * world
    never = without_the_spoiled_step(front, layout)
    for (_, outcome), (skipped, wanted) in zip(found, never, strict=True):
        assert skipped == 0
        same(outcome, wanted)


@fronts
@pytest.mark.thinned(1, 2)
def test_a_skipped_step_leaves_the_measurements_of_the_last_one(ranks, front):
    for taken, skipped, of_absent in ranks.run(2, disagreements.measured_last, front, "fsdp on 2", timeout=SOON):
        np.testing.assert_equal(skipped, taken)
        np.testing.assert_equal(of_absent, {key: taken[key] for key in of_absent})
        assert of_absent


IN_BUCKETS = {"fused": False}, 80, 3  # of which two wait, so that others wait for one of them


@pytest.mark.parametrize(
    "given", [({},), pytest.param(IN_BUCKETS, marks=pytest.mark.slow)], ids=["at first", "in buckets"]
)
@pytest.mark.parametrize("front", ASKING)
@pytest.mark.thinned(1, 2)
def test_a_rank_that_dies_in_a_step(ranks, front, given):
    found = ranks.outcomes(3, disagreements.dying, front, "fsdp on 3", *given, timeout=SOON)
    assert found[disagreements.ODD].error == "died"
    assert "exit code 7" in found[disagreements.ODD].traceback
    assert all(one.error for one in found)
    assert not any(one.error == "died" for i, one in enumerate(found) if i != disagreements.ODD)
