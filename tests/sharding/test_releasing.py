"""Steps in the backward pass under fully_shard: those after it, taken module by module, by all ranks or by none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sharding.models import FRONTS, TOLERANCE, Blend, close, same
from sharding.wrappings import WRAPPINGS

from layerwise.torch import Adafactor, Lamb, Lars
from layerwise.torch.tools._by_module import ByModule
from sharding import odd_releases, releasing

REST = "the rest"
SOON = 30.0  # seconds
ODD = odd_releases.ODD
ON_TWO = "FSDP2, resharded after forward"
OWN = {  # what the odd rank has to say of itself
    "broken state": "StateError",
    "broken at the end": "StateError",
    "clipping": "ContradictionError",
    "model_group": "ContradictionError",
}
LIKE_OTHERS = {  # for the library, if not for FSDP2
    "FSDP2, resharded after forward",
    "FSDP2, not resharded",
    "FSDP2, offloaded",
    "two losses",
    "graph of two uses kept",
    "entrance apart",
}
COMPACT = {"master_weights": "split24", "state_dtype": "int8", "lr": 0.01}


def check(ranks, front, program, dtype=torch.float64, **options):
    world = releasing.PROGRAMS[program].world
    found = ranks.run(world, releasing.trained, front, program, options, dtype, True)
    wanted = ranks.run(world, releasing.trained, front, program, options, dtype, False)
    # Passes make more of the last digit, in which sums of tensors that step together may differ.
    tolerance = 1e-9 if dtype == torch.float64 else 10 * TOLERANCE[dtype]
    for (ours, left, most), (theirs, *_) in zip(found, wanted, strict=True):
        close(ours, theirs, 1e-5 if "mixed precision" in program else tolerance)
        assert most == releasing.PROGRAMS[program].modules
        assert all(one == left[0] for one in left)
    return found[0]


@pytest.mark.parametrize(
    "program",
    [pytest.param(one, marks=pytest.mark.slow if one in LIKE_OTHERS else ()) for one in releasing.PROGRAMS],
)
def test_the_steps_are_those_after_the_pass(ranks, program):
    """And there are gradients of two modules at a time where nothing keeps them."""
    _, left, _ = check(ranks, Lamb, program)
    own = {"in part": ["norm.bias", "norm.weight"], "parallel in part": ["blocks.0.up.weight"]}
    assert left[0] == own.get(program, [])


@pytest.mark.parametrize("front", [*FRONTS, Blend])
@pytest.mark.thinned(2)
def test_optimizers(ranks, front):
    check(ranks, front, "used twice")


@pytest.mark.parametrize("front", [Lamb, Adafactor])
def test_compact_storage(ranks, front):
    check(ranks, front, "wide", torch.bfloat16, **COMPACT)


def test_without_the_compiled_engine(ranks):
    check(ranks, Lamb, "FSDP2", fused=False)


@pytest.mark.parametrize(("front", "rounds"), [(Lars, 1), (Lamb, 1), (Adafactor, 2)])
def test_one_collective_a_round_for_each_module(ranks, front, rounds):
    for during, after in ranks.run(2, odd_releases.per_pass, front, {})[0][1:]:
        assert during.count("allreduce_") == 3 * rounds
        assert during.count("_reduce_scatter_base_") == 3
        assert after == ["allreduce_"]  # that nothing is left is agreed on as well


def test_a_module_has_its_turn_once_the_next_one_is_reduced(ranks):
    during, _ = ranks.run(2, odd_releases.per_pass, Lamb, {})[0][-1]
    order = [name for name in during if name in ("allreduce_", "_reduce_scatter_base_")]
    reduced, stepped = "_reduce_scatter_base_", "allreduce_"
    assert order == [reduced, reduced, stepped, reduced, stepped, stepped]


@pytest.mark.parametrize(
    ("wrapping", "change"),
    [
        *((ON_TWO, change) for change in odd_releases.CHANGES),
        *((wrapping, change) for wrapping in ("HSDP", "TP and FSDP2") for change in ("lr", "broken state")),
    ],
)
def test_all_raise(ranks, wrapping, change):
    """Before the module whose turn it is has moved; those before it have. After that they go on."""
    world = WRAPPINGS[wrapping][0]
    found = ranks.run(world, odd_releases.disagreeing, change, wrapping, timeout=SOON)
    own = OWN.get(change, "SynchronizationError")
    stepped = {"broken state": {"blocks.1"}, "broken at the end": {"blocks.1", "blocks.0"}}.get(change, set())
    assert [error.partition(":")[0] for error, *_ in found] == [
        own if rank == ODD else "SynchronizationError" for rank in range(world)
    ]
    for _, changed, after in found:
        assert changed == stepped
        assert {"blocks.0", REST} <= after
    assert "nothing of this module was stepped; the modules before it" in found[0][0]


def test_the_cause_is_named(ranks):
    (told, *_), _ = ranks.run(2, odd_releases.disagreeing, "broken state", ON_TWO, timeout=SOON)
    assert f"rank {ODD} cannot take the step (StateError: 'exp_avg' of blocks.0.up.weight" in told
    for said, *_ in ranks.run(2, odd_releases.disagreeing, "branch", ON_TWO, timeout=SOON):
        assert "the gradient of 'blocks.0.up.weight' is there on one and missing on the other" in said


def test_ranks_that_accumulate_otherwise(ranks):
    for said, changed in ranks.run(2, odd_releases.different_every, timeout=SOON):
        assert said.startswith("SynchronizationError")
        assert not changed


def test_other_shapes(ranks):
    for said, changed in ranks.run(2, odd_releases.other_shapes, timeout=SOON):
        assert said.startswith("SynchronizationError")
        assert "shape" in said
        assert not changed


def test_a_rank_without_its_optimizer(ranks):
    (told, changed), (own, _) = ranks.run(2, odd_releases.dropped, timeout=SOON)
    assert "no longer exists" in told
    assert own.startswith("ParameterError")
    assert not changed


def test_processes_without_a_module_take_no_part_in_its_turn(ranks):
    both = {"pairs", "every"}
    assert ranks.run(4, odd_releases.with_others_on_another_mesh, timeout=SOON) == [both, both, {"every"}, {"every"}]


def test_all_skip_the_module(ranks):
    assert ranks.run(2, odd_releases.skipping, timeout=SOON) == [(1, {"blocks.1", REST}, [])] * 2


@pytest.mark.parametrize("end", [odd_releases.die, odd_releases.fail])
def test_a_rank_that_ends_in_the_middle(ranks, end):
    found = ranks.outcomes(3, odd_releases.interrupted, end, timeout=8.0)
    assert found[ODD].error == ("died" if end is odd_releases.die else "ArithmeticError")
    assert all(one.error not in ("", "died", "AssertionError") for i, one in enumerate(found) if i != ODD), found


def test_a_pass_after_one_that_failed(ranks):
    assert ranks.run(2, odd_releases.failing_everywhere, timeout=SOON) == [[], []]


@pytest.mark.parametrize("where", ["between the pass and the step", "in a turn"])
def test_ctrl_c(ranks, where):
    """It waits for the end of a turn, so that nothing is half stepped, and the passes after it are as usual."""
    (kept, came, after), (*others, _) = ranks.run(2, odd_releases.stopped, where, timeout=SOON)
    assert (kept, came, all(others)) == (True, True, True)
    steps = {name: float(x) for name, x in after["state"].items() if name.endswith("step")}
    assert {name for name, n in steps.items() if n == 4} == {
        name for name in steps if where == "in a turn" and "blocks.1." in name
    }
    assert set(steps.values()) <= {3, 4}


def test_refused(ranks):
    for said in ranks.run(2, odd_releases.refused):
        assert [one.partition(":")[0] for one in said] == ["ContradictionError"] * 5
        words = ["no module of fully_shard", "`alone` must be False", "`model_group` must be None"]
        words += ["`max_grad_norm` must be None", "when a backward pass ends"]
        assert all(word in one for word, one in zip(words, said, strict=True)), said


def test_replicas_end_alike(ranks):
    first, *others = ranks.run(4, releasing.trained, Lamb, "HSDP", {}, torch.float64, True)
    for other, *_ in others:
        same(other, first[0])


def test_a_stream_that_waits_for_the_gradients(monkeypatch):
    """Which FSDP2 reduces on a stream of its own, on accelerators."""
    waits = []
    here, theirs = (SimpleNamespace(device=name, wait_stream=waits.append) for name in ("here", "there"))
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: here)
    of = SimpleNamespace(_stream=theirs)
    ByModule._await_gradients(of)
    assert waits == [theirs]
    of._stream = here
    ByModule._await_gradients(of)
    assert waits == [theirs]
