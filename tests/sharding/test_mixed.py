"""Groups with different rules on several ranks: one step, with the sums of all rules in the same rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import KERNELED
from sharding.counting import Collectives
from sharding.models import BUSY, TOLERANCE, Blend, close, named, same
from sharding.test_checkpoint import resumed, saved  # noqa: F401  # the fixture of the checkpoints
from sharding.test_training import check as trains_in
from sharding.test_trajectories import check as lies_as
from torch import nn

from layerwise.torch import Lamb, Mixed
from sharding import counting, disagreements, runs

ROUNDS = max(case.exchanges() for case in KERNELED)
MAY_CLIP = {"max_grad_norm": 0.5}
pytestmark = pytest.mark.usefixtures("ranks")


def test_all_rules_take_part() -> None:
    opt = Blend(list(named(runs.Irregular(0, torch.float32)).items()))
    assert {group["rule"] for group in opt.param_groups} == {case.name for case in KERNELED}


@pytest.mark.parametrize("layout", ["fsdp on 2", pytest.param("hybrid", marks=pytest.mark.slow), "several meshes"])
@pytest.mark.parametrize("options", [{}, MAY_CLIP, {**MAY_CLIP, "fused": False}], ids=str)
def test_layouts(ranks: Any, layout: str, options: dict[str, Any]) -> None:
    lies_as(ranks, Blend, layout, torch.float64, **options)


def per_step(ranks: Any, front: Any, **options: Any) -> list[int]:
    """The collectives of each step after the first, the same on every rank."""
    found = ranks.run(2, counting.per_step, front, "fsdp on 2", options)
    numbers = [[len(one) for one in steps[1:]] for steps in found]
    assert numbers[1:] == numbers[:-1]
    return numbers[0]


def test_one_collective_for_each_round_of_the_longest_rule(ranks: Any) -> None:
    assert set(per_step(ranks, Blend)) == {ROUNDS}
    [clipped] = set(per_step(ranks, Blend, **MAY_CLIP))
    assert ROUNDS <= clipped <= ROUNDS + 1


def separately(layout: str) -> list[int]:
    """The collectives of steps of an optimizer for each of the rules."""
    params, grads = runs.prepared(layout, torch.float32)
    opts, found = [], []
    for group in Blend.groups(params.items()):
        opts.append(Mixed([group]))
    for one in grads:
        runs.give(params, one)
        with Collectives() as collectives:
            for opt in opts:
                opt.step()
        found.append(len(collectives.seen))
    return found


def test_optimizers_of_their_own_take_more(ranks: Any) -> None:
    for steps in ranks.run(2, separately, "fsdp on 2"):
        assert steps[-1] == sum(case.exchanges() for case in KERNELED)


@pytest.mark.parametrize("how", ["dcp", pytest.param("flat", marks=pytest.mark.slow), "full"])
def test_a_checkpoint_goes_on_bit_for_bit(ranks: Any, saved: Any, how: str) -> None:  # noqa: F811
    same(*resumed(ranks, saved, Blend, ("fsdp on 2", "fsdp on 2"), torch.float32, how, **MAY_CLIP))


def test_a_checkpoint_goes_onto_another_layout(ranks: Any, saved: Any) -> None:  # noqa: F811
    ours, wanted = resumed(ranks, saved, Blend, ("fsdp on 2", "plain"), torch.float64, **MAY_CLIP)
    close(ours, wanted, TOLERANCE[torch.float64])


def test_zero_redundancy_optimizer(ranks: Any) -> None:
    trains_in(ranks, Blend, "DDP", torch.float64, zero=True, **MAY_CLIP)


def another_rule(front: Any, layout: str) -> tuple[str, str]:
    """The error where one rank steps a group by another rule than the others."""
    params, grads = runs.prepared(layout, torch.float64)
    opt = runs.made(front, params, {})
    runs.give(params, grads[0])
    if torch.distributed.get_rank() == disagreements.ODD:
        group = next(group for group in opt.param_groups if group["rule"] == "Lamb")
        group.update(opt._groups.filled({"rule": "AdamW", "lr": group["lr"], "weight_decay": group["weight_decay"]}))
    try:
        opt.step()
    except Exception as problem:
        return type(problem).__name__, str(problem)
    return "", ""


def test_ranks_that_step_by_other_rules_find_out(ranks: Any) -> None:
    for kind, words in ranks.run(2, another_rule, Blend, "fsdp on 2"):
        assert kind == "SynchronizationError"
        assert "the rule of" in words
        assert "Lamb" in words
        assert "AdamW" in words


def test_an_own_optimizer_is_a_mixed_of_one_rule(ranks: Any) -> None:
    """Bit for bit, so that a checkpoint of the one is one of the other."""
    model, twin = (runs.Irregular(0, torch.float32) for _ in range(2))
    ours, theirs = Mixed([{"params": list(named(model).items()), "rule": Lamb, **BUSY[Lamb]}]), None
    theirs = runs.made(Lamb, named(twin), {"blocks": None})
    for grads in runs.gradients(None, torch.float32):
        for one, opt in ((model, ours), (twin, theirs)):
            runs.give(named(one), grads)
            opt.step()
    assert isinstance(model, nn.Module)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
