"""Optimizers that were made before their model was sharded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from sharding.disagreements import local
from sharding.layouts import mesh_of
from sharding.models import Small, named, whole
from sharding.runs import batches
from sharding.wrappings import FullyShardedDataParallel, fsdp1, fsdp2, fully_shard, tensor_parallel
from torch import nn

from layerwise.errors import LayerwiseError
from layerwise.torch import Lamb


def flat(model: Any) -> Any:
    """FSDP1 as it is by default, which takes the parameters away."""
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def partly(model: Any) -> Any:
    """The blocks alone; the rest goes on as it was."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh_of(dist.get_world_size()))
    return model


def around_tensor_parallel(model: Any) -> Any:
    return fsdp2(model, mesh_of(2, 2)["outer"])


WRAPPERS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "FSDP2": (2, fsdp2),
    "FSDP2, in part": (2, partly),
    "FSDP2 around TP": (4, around_tensor_parallel),
    "TP": (2, tensor_parallel),
    "FSDP1": (2, flat),
    "FSDP1, original parameters": (2, partial(fsdp1, described=False)),
}


def made_before(wrapper: str, with_names: bool) -> tuple[str, bool]:
    """What a step says, and whether it moved what it has."""
    model = Small(torch.float32)
    if wrapper == "FSDP2 around TP":
        tensor_parallel(model, mesh_of(2, 2)["inner"])
    opt = Lamb(model.named_parameters() if with_names else model.parameters(), lr=0.1)
    params = opt.param_groups[0]["params"]
    before = [local(p).clone() for p in params]
    wrapped = WRAPPERS[wrapper][1](model)
    wrapped(batches(1)[0]).backward()
    try:
        opt.step()
    except LayerwiseError as problem:
        same = all(map(torch.equal, map(local, params), before)) if not wrapper.startswith("FSDP1") else True
        return f"{type(problem).__name__}: {problem}", not same
    return "", True


def changed_by_hand(steps: int) -> tuple[str, bool]:
    """What is said where somebody puts the new parameters in the groups, and whether steps are then those of others."""
    ends = []
    for by_hand in (True, False):
        model = Small(torch.float64)
        opt = Lamb(model.named_parameters(), lr=0.1) if by_hand else None
        for batch in batches(steps):
            model(batch).backward()
            opt = opt or Lamb(model.named_parameters(), lr=0.1)
            opt.step()
            opt.zero_grad()
        fsdp2(model)
        opt = opt or Lamb(model.named_parameters(), lr=0.1)
        for group in opt.param_groups:
            group["params"] = [dict(model.named_parameters())[name] for name in group["param_names"]]
        for batch in batches(3):
            model(batch).backward()
            try:
                opt.step()
            except LayerwiseError as problem:
                return f"{type(problem).__name__}: {problem}", False
            opt.zero_grad()
        ends.append([torch.tensor(whole(p)) for p in named(model).values()])
    return "", all(map(torch.equal, *ends))


def beside_another_model(trained: bool) -> bool:
    """Whether a parameter of no module is left where it is, though another model has a part of its name and shape."""
    other = nn.Linear(4, 4)
    fully_shard(other, mesh=mesh_of(dist.get_world_size()))
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
