"""Modules of FSDP2, whose parameters get their gradients together, and the backward pass that computes them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from layerwise.torch.sharding._cuts import is_dtensor

NO_PASS = -1  # PyTorch's number for "no backward pass runs"
NO_UNIT = 0  # beside the numbers of units, which are identities
T = TypeVar("T")


def alive(cls: type[T]) -> Iterator[T]:
    """Yield all objects of a class that this process holds. It takes some milliseconds, so ask once.

    Wrappers of a model are made after its optimizer or before it, by programs that need not show them to us. They hold
    parameters, which do not refer to them. Of DistributedDataParallel even the hooks on parameters are C++.
    """
    # Objects are asked by their type: `isinstance` also asks them, and proxies then do what they are proxies for.
    return (x for x in gc.get_objects() if issubclass(type(x), cls))


def current_pass() -> int:
    """Return the number of the backward pass that runs in this thread, or NO_PASS."""
    number: int = torch._C._current_graph_task_id()
    return number


def at_end_of_pass(call: Callable[[], None]) -> None:
    """Call a function once the running backward pass has computed everything."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(call)


def units_of(params: Iterable[Tensor]) -> dict[int, int]:
    """Return by the identity of a parameter the number of its unit, if FSDP2 reduces its gradient.

    A unit are the modules of one call of fully_shard, which share a state. Only that tells which of the parameters
    in its modules were left out of it.
    """
    wanted = {id(p) for p in params if is_dtensor(p)}
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    found: dict[int, int] = {}
    for module in alive(fsdp.FSDPModule) if wanted and fsdp else ():
        state = fsdp.fully_shard.state(module)
        for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:  # older states have one
            found.update({id(one.sharded_param): id(state) for one in getattr(group, "fsdp_params", ())})
    return {p: unit for p, unit in found.items() if p in wanted}
