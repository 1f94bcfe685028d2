"""Agreement that stays on the device, so that no host waits: the same steps, and errors that come a step later."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from sharding.models import TOLERANCE, close, same
from sharding.test_collectives import ACROSS, ROUNDS
from sharding.test_trajectories import alone, shared_stats

from layerwise.torch import Lamb
from sharding import on_device, runs

NONE = "NoneType"
SOON = 20.0  # seconds until ranks that wait for one another have to have noticed
TOGETHER = "SynchronizationError"
HYBRID = ["hybrid", "hybrid in part"]
SINGLE = [front for front, rounds in ROUNDS.items() if rounds <= 1]
SEVERAL = [front for front, rounds in ACROSS.items() if rounds > 1]
fronts = pytest.mark.parametrize("front", SINGLE)


@pytest.mark.parametrize(
    "layout", ["fsdp on 3", "two-dimensional", *(pytest.param(one, marks=pytest.mark.slow) for one in HYBRID)]
)
@fronts
@pytest.mark.thinned(1)
def test_the_same_steps(ranks, front, layout):
    noted, found = zip(*ranks.run(runs.layout_of(layout)[0], on_device.stepped, front, layout, {}), strict=True)
    assert set(map(tuple, noted)) == {(False,) * (runs.STEPS - 1)}, "the first step is new, and waited for"
    close(shared_stats(found)[0], alone(front, torch.float64), TOLERANCE[torch.float64], layout)


@pytest.mark.parametrize("layout", ["fsdp on 3", pytest.param("two-dimensional", marks=pytest.mark.slow)])
@pytest.mark.parametrize("front", SEVERAL)
@pytest.mark.thinned(1)
def test_a_step_of_several_rounds_waits_once_unless_it_is_recorded(ranks, front, layout):
    """A rank that cannot take it would be missing in the second."""
    world, wanted = runs.layout_of(layout)[0], alone(front, torch.float64)
    for recorded in (False, True):
        noted, found = zip(*ranks.run(world, on_device.stepped, front, layout, {}, recorded), strict=True)
        assert set(map(tuple, noted)) == {(False,) * (runs.STEPS - 2 if recorded else 0)}
        close(shared_stats(found)[0], wanted, TOLERANCE[torch.float64], layout)


def test_a_first_step_is_not_recorded(ranks):
    found = ranks.outcomes(2, on_device.recorded_at_once, Lamb, "fsdp on 2", timeout=SOON)
    assert [one.error for one in found] == ["EngineError"] * 2
    assert all("before one like it has been taken" in one.traceback for one in found)


@pytest.mark.skipif(find_spec("triton") is None or torch.cuda.is_available(), reason="kernels in an interpreter")
def test_by_kernels(ranks):
    noted, found = zip(*ranks.run(2, on_device.stepped_by_kernels, Lamb, "fsdp on 2"), strict=True)
    steps = on_device.gpu_engine.STEPS
    assert set(map(tuple, noted)) == {(False,) * (steps - 1)}
    close(shared_stats(found)[0], alone(Lamb, torch.float64, steps=steps), TOLERANCE[torch.float64])


AT_ONCE = {"no gradient": TOGETHER, "forbidden lr": "HyperparameterError"}  # of the rank that is otherwise


@pytest.mark.parametrize(
    ("change", "layout"),
    [
        pytest.param(change, layout, marks=() if (change == "lr") == (world == 4) else pytest.mark.slow)
        for change in ("lr", *AT_ONCE)
        for layout, world in (("fsdp on 3", 3), ("two-dimensional", 4))
    ],
)
@fronts
@pytest.mark.thinned(1)
def test_a_disagreement_changes_nothing_and_is_an_error_of_the_next_step(ranks, front, change, layout):
    """Of all ranks, so that the one after it is taken; a rank that does not agree on the device says at once."""
    found = ranks.run(runs.layout_of(layout)[0], on_device.disagreeing, front, layout, change, timeout=SOON)
    for rank, (errors, skipped, _) in enumerate(found):
        first = AT_ONCE.get(change, NONE) if rank == on_device.ODD else NONE
        assert [(name, changed) for name, _, changed in errors] == [(first, False), (TOGETHER, False), (NONE, True)]
        assert (first == TOGETHER) == ("capturable=True" in errors[0][1])
        assert "an earlier step" in errors[1][1]
        assert skipped == (first == NONE)
    wanted = on_device.without_the_third(front)
    for outcome in shared_stats([outcome for *_, outcome in found]):
        close(outcome, wanted, TOLERANCE[torch.float64], (layout, change))


def test_an_optimizer_that_one_rank_makes_again(ranks):
    """The rest send no second message for what is new to it."""
    for rank, errors in enumerate(ranks.run(3, on_device.made_again, Lamb, "fsdp on 3", timeout=SOON)):
        first = TOGETHER if rank == on_device.ODD else NONE
        # Its list of sums is new to it until all have agreed on it, for which none may wait on the device.
        assert [(name, changed) for name, _, changed in errors][:2] == [(first, False), (TOGETHER, False)], errors


@pytest.mark.parametrize("front", [Lamb])
def test_measurements_say_so_too(ranks, front):
    assert ranks.run(2, on_device.read, front, "fsdp on 2", timeout=SOON) == [[TOGETHER, TOGETHER, ""]] * 2


@fronts
@pytest.mark.thinned(1)
def test_all_skip(ranks, front):
    found, wanted = (
        ranks.run(3, on_device.skipping, front, "fsdp on 3", spoiled, timeout=SOON) for spoiled in (True, False)
    )
    for (skipped, outcome), (none, never) in zip(found, wanted, strict=True):
        assert (skipped, none) == (1, 0)
        same(outcome, never)


@pytest.mark.parametrize("options", [{}, {"skip_nonfinite": True}], ids=["plain", "skip_nonfinite"])
@fronts
@pytest.mark.thinned(1)
def test_no_host_waits(ranks, front, options):
    """On the meta device there is nothing to wait for, and whatever reads a number raises."""
    assert ranks.run(2, on_device.on_nothing, front, options) == [2, 2]
