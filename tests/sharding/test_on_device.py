"""Agreement that stays on the device, so that no host waits: the same steps, and errors that come a step later.

The machine's memory stands for a device here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from sharding.cells import MAY_SKIP, ODD, Found, Lying, Row, agree, alone, kernels, with_nan, world_of
from sharding.layouts import mesh_of
from sharding.test_collectives import ACROSS, ROUNDS
from sharding.test_disagreement import CHANGES, tried
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from layerwise.torch import Lamb
from layerwise.torch.sharding import _on_device
from layerwise.torch.sharding._agreement import Agreement, Outcome
from layerwise.torch.step import _plan, _tensors

TOGETHER = "SynchronizationError"
SINGLE = [front for front, rounds in ROUNDS.items() if rounds <= 1]
SEVERAL = [front for front, rounds in ACROSS.items() if rounds > 1]
OPTIONS = {"capturable": True, "fused": False}
fronts = pytest.mark.parametrize("front", SINGLE)
recording = patch.object(_on_device, "captures", lambda device: True)  # as if a graph recorded what is done


@contextmanager
def agreeing() -> Iterator[list[Tensor]]:
    """Let agreements stay on the "device" meanwhile, and note their outcomes: whether ranks disagreed."""
    noted: list[Tensor] = []
    note = _on_device.Verdicts.note

    def noting(self: Any, disagreed: Tensor) -> None:
        noted.append(disagreed)
        note(self, disagreed)

    with patch.object(_on_device, "HOST", ()), patch.object(_on_device.Verdicts, "note", noting):
        yield noted


# ---- the same steps


def _stepped(front: Any, layout: str, how: str, steps: int, wanted: Any) -> tuple[list[bool], Found]:
    """The outcomes of some steps, and what a rank has then; if recorded, all but the first two are."""
    lying, by_kernels = Lying(layout), how == "by kernels"
    opt = lying.optimizer(front, {"capturable": True} if by_kernels else OPTIONS)
    with agreeing() as noted, kernels(proven=True) if by_kernels else nullcontext():
        for i in range(steps):
            lying.give(i)
            with recording if how == "recorded" and i > 1 else nullcontext():
                opt.step()
    return [bool(one) for one in noted], lying.found(opt, wanted)


def check(ranks: Any, front: Any, layout: str, how: str, agreed: int, steps: int = 4) -> None:
    wanted = alone(front, Row(None, steps=steps))
    noted, found = zip(*ranks.run(world_of(layout), _stepped, front, layout, how, steps, wanted), strict=True)
    assert [*noted] == [[False] * agreed] * len(noted)
    agree(found, wanted)


@fronts
@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    "layout",
    [
        "fsdp on 3",
        "two-dimensional",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("hybrid", "hybrid in part")),
    ],
)
def test_a_step_of_one_message_is_agreed_on_by_the_device(ranks, front, layout):
    """All but the first, which is new, and waited for."""
    check(ranks, front, layout, "", 3)


@pytest.mark.parametrize("front", SEVERAL)
@pytest.mark.thinned(1)
@pytest.mark.parametrize(("how", "agreed"), [("", 0), ("recorded", 2)])
def test_a_step_of_several_waits_unless_it_is_recorded(ranks, front, how, agreed):
    """A rank that cannot take it would be missing in the second."""
    check(ranks, front, "fsdp on 3", how, agreed)


@pytest.mark.skipif(find_spec("triton") is None or torch.cuda.is_available(), reason="kernels in an interpreter")
def test_kernels_that_prove_themselves_agree_on_the_device(ranks):
    check(ranks, Lamb, "fsdp on 2", "by kernels", 1, steps=2)


def _recorded_at_once() -> None:
    lying = Lying("fsdp on 2")
    lying.give(0)
    with agreeing(), recording:
        lying.optimizer(Lamb, OPTIONS).step()


def test_a_first_step_is_not_recorded(ranks):
    found = ranks.outcomes(2, _recorded_at_once)
    assert [one.error for one in found] == ["EngineError"] * 2
    assert all("before one like it has been taken" in one.traceback for one in found)


# ---- disagreement


def _begun(front: Any, layout: str, options: Mapping[str, Any] | None = None) -> tuple[Lying, Any]:
    """After two steps, and with the gradients of the third."""
    lying = Lying(layout)
    opt = lying.optimizer(front, {**OPTIONS, **(options or {})})
    for i in range(2):
        lying.give(i)
        opt.step()
    lying.give(2)
    return lying, opt


def _disagreeing(front: Any, layout: str, change: str, wanted: Any) -> tuple[list[tuple[str, bool]], Found]:
    """What comes of a step about which ranks disagree, and of the two after it: errors, and whether all stayed."""
    with agreeing():
        lying, opt = _begun(front, layout)
        group = dict(opt.param_groups[0])
        if dist.get_rank() == ODD:
            CHANGES[change].act(opt, lying.params)
        said = [tried(opt, lying.params)]
        opt.param_groups[0].update(group)
        lying.give(3)
        said += [tried(opt, lying.params) for _ in range(2)]
        return said, lying.found(opt, wanted)


AT_ONCE = {"no gradient": TOGETHER, "forbidden lr": "HyperparameterError"}  # of the rank that is otherwise


@fronts
@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("change", "layout"),
    [
        pytest.param(change, layout, marks=() if (change == "lr") == (layout != "fsdp on 3") else pytest.mark.slow)
        for layout in ("fsdp on 3", "two-dimensional")
        for change in ("lr", *AT_ONCE)
    ],
)
def test_a_disagreement_changes_nothing_and_is_an_error_of_the_next_step(ranks, front, change, layout):
    """Of all ranks, so that the one after it is taken; a rank that does not agree on the device says at once."""
    wanted = alone(front, Row(None, "nan on one rank"))  # which leaves out the third step too
    found = ranks.run(world_of(layout), _disagreeing, front, layout, change, wanted)
    for rank, (said, outcome) in enumerate(found):
        first = AT_ONCE.get(change, "") if rank == ODD else ""
        (now, stayed), (later, also), last = said
        assert (now.partition(":")[0], stayed, also, last) == (first, True, True, ("", False))
        assert later.startswith(TOGETHER)
        assert "an earlier step" in later
        assert (first == TOGETHER) == ("capturable=True" in now)
        assert outcome.skipped == (not first)
    agree([one._replace(skipped=0) for _, one in found], wanted)


def test_a_disagreement_is_remembered_until_the_host_learns_of_it():
    """A graph may be replayed many times before that."""
    verdicts = _on_device.Verdicts(torch.device("cpu"))
    for disagreed in (True, False):
        verdicts.note(torch.tensor(disagreed))
        assert verdicts.disagreed()
    verdicts.forget()
    assert not verdicts.disagreed()


def _skipping(front: Any, wanted: Any) -> Found:
    with agreeing() as noted:
        lying, opt = _begun(front, "fsdp on 3", MAY_SKIP)
        with_nan(lying, opt, 2)
        opt.step()
        lying.give(3)
        opt.step()
        assert not any(noted)
        return lying.found(opt, wanted)


@fronts
@pytest.mark.thinned(1)
def test_all_skip_what_one_cannot_step(ranks, front):
    wanted = alone(front, Row(None, "nan on one rank"))
    agree(ranks.run(3, _skipping, front, wanted), wanted, skipped=1)


# ---- no host waits


def _on_nothing(front: Any, options: Mapping[str, Any]) -> int:
    """How many steps the device agreed on whose parameters are on the meta device: what reads a number raises there."""

    mesh = mesh_of(2)
    with patch.object(mesh, "_device_type", "meta"):
        whole = {"matrix": (8, 12), "vector": (9,), "stack": (3, 8, 4)}
        params = {
            name: nn.Parameter(DTensor.from_local(torch.ones(4, *shape[1:], device="meta"), mesh, [Shard(0)]))
            for name, shape in whole.items()
        }
        for p in params.values():
            p.grad = torch.ones_like(p)
        lets = patch.object(_tensors, "check_parameter"), patch.object(_plan, "check_parameter")
        # The first step makes room, and a sum over a device that holds no numbers waits for none.
        first = patch.object(Agreement, "_exchange", lambda *_: Outcome(False, new=True))
        sums = first, patch.object(dist, "all_reduce", lambda *_, **__: None)
        with agreeing() as noted, lets[0], lets[1], sums[0], sums[1], patch.object(_on_device, "HOST", ("cpu",)):
            opt = front(list(params.items()), capturable=True, lr=torch.ones((), device="meta"), **options)
            for _ in range(3):
                opt.step()
    return len(noted)


@fronts
@pytest.mark.thinned(1)
@pytest.mark.parametrize("options", [{}, MAY_SKIP], ids=["plain", "skip_nonfinite"])
def test_no_host_waits(ranks, front, options):
    assert ranks.run(2, _on_nothing, front, options) == [2, 2]
