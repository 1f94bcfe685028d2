"""A model that is sharded after its optimizer was made: the optimizer says so, or steps what it is given instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharding.layouts import mesh_of
from sharding.models import Small, local, named
from sharding.wrappings import batches, fsdp1, fsdp2, fully_shard, tensor_parallel
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from layerwise.errors import LayerwiseError
from layerwise.torch import Lamb


def in_part(model: Any) -> Any:
    """The blocks alone; the rest goes on as it was."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh_of(dist.get_world_size()))
    return model


WRAPPERS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "FSDP2 on one process": (1, fsdp2),
    "FSDP2": (2, fsdp2),
    "FSDP2, in part": (2, in_part),
    "TP": (2, tensor_parallel),
    # As it is by default, which takes the parameters away.
    "FSDP1": (2, partial(FullyShardedDataParallel, device_id=torch.device("cpu"))),
    "FSDP1, original parameters": (2, partial(fsdp1, described=False)),
    "FSDP2 around TP": (4, lambda model: fsdp2(model, mesh_of(2, 2)["outer"])),
}


def tried(opt: Any) -> str:
    try:
        opt.step()
    except LayerwiseError as problem:
        return f"{type(problem).__name__}: {problem}"
    return ""


def _made_before(wrapper: str, with_names: bool) -> tuple[str, bool]:
    """What a step says, and whether it moved what it has."""
    model = Small(torch.float32)
    if wrapper == "FSDP2 around TP":
        tensor_parallel(model, mesh_of(2, 2)["inner"])
    opt = Lamb(model.named_parameters() if with_names else model.parameters(), lr=0.1)
    params = opt.param_groups[0]["params"]
    before = [local(p).clone() for p in params]
    wrapped = WRAPPERS[wrapper][1](model)
    wrapped(batches(1)[0]).backward()
    said = tried(opt)
    kept = wrapper.startswith("FSDP1") or all(map(torch.equal, map(local, params), before))  # FSDP1 frees them
    return said, not kept


@pytest.mark.parametrize(("wrapper", "with_names"), [*((one, True) for one in WRAPPERS), ("FSDP2", False)])
def test_a_model_that_was_sharded_after_its_optimizer_was_made_is_not_stepped(ranks, wrapper, with_names):
    for said, moved in ranks.run(WRAPPERS[wrapper][0], _made_before, wrapper, with_names):
        assert not moved
        assert said.startswith("ParameterError")
        assert "fully_shard" in said
        assert wrapper not in ("FSDP2", "FSDP2 on one process") or "no longer a parameter of its model" in said


def put_in(opt: Any, model: Any) -> None:
    """Put the parameters that the model has now in place of those that it had."""
    for group in opt.param_groups:
        group["params"] = [dict(model.named_parameters())[name] for name in group["param_names"]]


def _by_hand() -> bool:
    """Whether steps are those of others where somebody puts the new parameters in the groups."""
    ends: list[Any] = []
    for by_hand in (True, False):
        model = Small(torch.float64)
        before = Lamb(model.named_parameters(), lr=0.1)
        fsdp2(model)
        opt = before if by_hand else Lamb(model.named_parameters(), lr=0.1)
        put_in(opt, model)
        for one in batches(3):
            model(one).backward()
            opt.step()
            opt.zero_grad()
        ends.append([local(p).clone() for p in named(model).values()])
    return all(map(torch.equal, *ends))


def test_new_parameters_put_in_the_groups_are_stepped(ranks):
    """As Accelerate does it, before the first step."""
    assert ranks.run(2, _by_hand) == [True] * 2


def _begun_again() -> tuple[str, str, bool]:
    """What is said of the state of the old parameters, and without it, and whether the step measures the new alone."""
    model = Small(torch.float64)
    opt = Lamb(model.named_parameters(), lr=0.1)
    model(batches(1)[0]).backward()
    opt.step()
    fsdp2(model)
    put_in(opt, model)
    model(batches(1)[0]).backward()
    said = tried(opt)
    opt.state.clear()
    return said, tried(opt), opt.stats().keys() == named(model).keys()


def test_new_parameters_that_leave_their_state_behind_are_stepped_once_that_is_gone(ranks):
    for said, again, measured in ranks.run(2, _begun_again):
        assert said.startswith("ParameterError")
        assert "replaced another tensor" in said
        assert not again
        assert measured


def _beside_another_model(trained: bool) -> bool:
    """Whether a parameter of no module is left where it is, though another model has a part of its name and shape."""
    other = fully_shard(nn.Linear(4, 4), mesh=mesh_of(dist.get_world_size()))
    if trained:
        theirs = Lamb(other.named_parameters(), lr=0.1)
        other(torch.ones(2, 4)).sum().backward()
    loose, moving = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(3))
    opt = Lamb([("weight", loose), ("shift", moving)], lr=0.1)
    moving.grad = torch.ones(3)
    opt.step()
    if trained:
        theirs.step()
    return bool((loose == 1).all() and (moving != 1).all())


@pytest.mark.parametrize("trained", [False, True])
def test_another_model_with_equal_names_and_shapes_is_told_apart(ranks, trained):
    assert ranks.run(2, _beside_another_model, trained) == [True, True]
