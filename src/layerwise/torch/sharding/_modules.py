"""Modules of FSDP2, whose parameters get their gradients together, and the backward pass that computes them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from layerwise.torch.sharding._cuts import is_dtensor

NO_PASS = -1  # PyTorch's number for "no backward pass runs"
Unit = frozenset[int]  # modules whose gradients FSDP2 reduces at once; several where they share a parameter
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


def units_of(params: Iterable[Tensor]) -> dict[int, Unit]:
    """Return by the identity of a parameter the modules with which it gets its gradient, if FSDP2 makes that."""
    wanted = {id(p) for p in params if is_dtensor(p)}
    fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    modules: list[Any] = list(alive(fsdp)) if wanted and fsdp is not None else []
    owners = _owners(modules, wanted)
    if modules and wanted - owners.keys():
        # After a forward pass without a backward one, modules have whole parameters in place of sharded ones.
        for module in modules:
            module.reshard()
        owners = _owners(modules, wanted)
    states = {id(module): _state(module) for module in modules}
    reduced = _reduced(states.values())
    kept = owners if reduced is None else owners.keys() & reduced
    return {p: frozenset(id(states[module] or module) for module in owners[p]) for p in kept}


def _owners(modules: Sequence[Any], wanted: set[int]) -> dict[int, set[int]]:
    """Return by parameter the modules that have it, directly or in a submodule that is none of them."""
    among, found = {id(module) for module in modules}, dict[int, set[int]]()
    for module in modules:
        for p in _own_parameters(module, among):
            if id(p) in wanted:
                found.setdefault(id(p), set()).add(id(module))
    return found


def _own_parameters(module: nn.Module, others: set[int]) -> Iterator[Tensor]:
    yield from module.parameters(recurse=False)
    for child in module.children():
        if id(child) not in others:
            yield from _own_parameters(child, others)


def _state(module: nn.Module) -> Any:
    """Return the state that modules of one call of fully_shard share, or None if PyTorch does not give it."""
    from torch.distributed.fsdp import fully_shard

    state_of = getattr(fully_shard, "state", None)
    return None if state_of is None else state_of(module)


def _reduced(states: Iterable[Any]) -> set[int] | None:
    """Return the parameters whose gradients FSDP2 reduces, or None if it does not say.

    Only then can it be known of a DTensor in a module that `ignored_params` had it.
    """
    found: set[int] = set()
    for state in states:
        groups = getattr(state, "_fsdp_param_groups", None)
        groups = [getattr(state, "_fsdp_param_group", None)] if groups is None else groups
        each = [one for group in groups for one in getattr(group, "fsdp_params", ())]
        if state is None or not all(hasattr(one, "sharded_param") for one in each):
            return None
        found.update(id(one.sharded_param) for one in each)
    return found or None
