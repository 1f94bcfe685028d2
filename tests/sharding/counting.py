"""Which collectives a step takes, as the dispatcher sees them, whoever calls them and by whichever interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from sharding.layouts import mesh_of
from sharding.models import everything
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import layerwise.torch
from sharding import runs

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
BUCKETS_OF_40 = 5  # of the irregular model's parameters, a third of each
OF_VECTORS = 1  # of these buckets
OF_STACKS = 1  # of matrices along the first dimension, which is cut
WAITING = ("wait_tensor", "_wrap_tensor_autograd")
Seen = list[tuple[str, int]]


class Collectives(TorchDispatchMode):
    """Notes the name of every collective, and how many numbers it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Seen = []
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # its own calls come by again, and collectives are among those
        name = func.overloadpacket.__name__
        if func.namespace in NAMESPACES and name not in WAITING:
            given = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
            self.seen.append((name, sum(x.numel() for x in given)))
            self.bytes += sum(x.nbytes for x in given)
        return func(*args, **(kwargs or {}))


def per_step(front: Any, layout: str, options: Mapping[str, Any], redistributed: bool = False) -> list[Seen]:
    """The collectives of each of some steps."""
    params, grads = runs.prepared(layout, torch.float32)
    opt, found = runs.made(front, params, options), []
    for one in grads:
        runs.give(params, one)
        if redistributed:
            runs.in_partial_sums(params)
        with Collectives() as collectives:
            opt.step()
        found.append(collectives.seen)
    return found


def in_turn(front: Any, layout: str) -> list[Seen]:
    """The collectives of steps of two optimizers that take turns, one of many parameters and one of few."""
    params, grads = runs.prepared(layout, torch.float32)
    few = dict(list(params.items())[:2])
    opts, found = [runs.made(front, some, {"blocks": None}) for some in (params, few)], []
    for one in grads:
        runs.give(params, one)
        for opt in opts:
            with Collectives() as collectives:
                opt.step()
            found.append(collectives.seen)
    return found


def in_buckets(front: Any, layout: str, size: int) -> tuple[Seen, Any]:
    """The collectives of the last of some steps by the rule, and what the steps made."""
    layerwise.torch.set_bucket_size(size)
    try:
        params, grads = runs.prepared(layout, torch.float64)
        opt = runs.made(front, params, {"fused": False})
        for one in grads:
            runs.give(params, one)
            with Collectives() as collectives:
                opt.step()
        return collectives.seen, everything(opt, params)
    finally:
        layerwise.torch.set_bucket_size(1 << 27)


def on_their_way(front: Any, layout: str, size: int, fused: bool | None = False) -> list[tuple[str, int]]:
    """When the sums of a step leave ("sent") and are waited for ("arrived"), and how many weights had changed then."""
    layerwise.torch.set_bucket_size(size)
    params, grads = runs.prepared(layout, torch.float64)
    opt, seen = runs.made(front, params, {"fused": fused}), []
    for one in grads[:2]:
        runs.give(params, one)
        opt.step()
    runs.give(params, grads[2])
    before = {name: p.detach().to_local().clone() for name, p in params.items() if isinstance(p, DTensor)}

    def note(what: str) -> None:
        changed = (not torch.equal(params[name].detach().to_local(), x) for name, x in before.items())
        seen.append((what, sum(changed)))

    class Work:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            note("sent")
            self.work = all_reduce(*args, **kwargs)

        def wait(self, *args: Any) -> None:
            self.work.wait(*args)
            note("arrived")

    all_reduce = dist.all_reduce
    with patch.object(dist, "all_reduce", Work):
        opt.step()
    layerwise.torch.set_bucket_size(1 << 27)
    return seen


def known_ones() -> list[str]:
    """The names of one collective each of what a step could call."""
    from torch.distributed._functional_collectives import all_reduce

    x, group = torch.ones(2), dist.group.WORLD
    sharded = distribute_tensor(torch.ones(2), mesh_of(2), [Shard(0)], src_data_rank=None)
    with Collectives() as collectives:
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.all_gather_object([None] * dist.get_world_size(), 1)
        assert all_reduce(x, "sum", group).sum() > 0
        sharded.full_tensor()
    return [name for name, _ in collectives.seen]
