"""Traces of wrappers in a model: FSDP2's units, whose gradients arrive together, and parameters that replace others."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from layerwise.core.plan import Shape
from layerwise.errors import ParameterError
from layerwise.torch.sharding._cuts import is_dtensor
from layerwise.torch.sharding._flat import is_known, tensors_in

NO_PASS = -1  # PyTorch's number for "no backward pass is running"
NO_UNIT = 0  # distinct from the numbers of units, which are ids
MARK = "_fsdp_orig_uid"  # of fully_shard, on parameters that it has sharded
T = TypeVar("T")


def alive(cls: type[T]) -> Iterator[T]:
    """Yield all objects of a class in this process. It takes some milliseconds, so ask once.

    Wrappers of a model are created before or after its optimizer, by programs that need not pass them to us. They hold
    parameters, which do not refer to them. DistributedDataParallel's hooks on parameters are even in C++.
    """
    # Objects are tested by their type: `isinstance` also calls into them, and proxies would react to it.
    return (x for x in gc.get_objects() if issubclass(type(x), cls))


def current_pass() -> int:
    """Return the number of the backward pass that is running in this thread, or NO_PASS."""
    number: int = torch._C._current_graph_task_id()
    return number


def at_end_of_pass(call: Callable[[], None]) -> None:
    """Call a function once the running backward pass has computed everything."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(call)


def units_of(params: Iterable[Tensor]) -> dict[int, int]:
    """Return the number of a parameter's unit, by the parameter's id, if FSDP2 reduces its gradient.

    A unit is the modules of one call of fully_shard, which share a state. Only that state shows which parameters in its
    modules were left out of it.
    """
    wanted = {id(p) for p in params if is_dtensor(p)}
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    found: dict[int, int] = {}
    for module in alive(fsdp.FSDPModule) if wanted and fsdp else ():
        state: Any = fsdp.fully_shard.state(module)  # None if another wrapper made it
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]  # or older
        for group in groups:
            found.update({id(one.sharded_param): id(state) for one in getattr(group, "fsdp_params", ())})
    return {p: unit for p, unit in found.items() if p in wanted}


# ---- parameters that a wrapper has replaced since the optimizer was made


def check_replaced(members: Iterable[tuple[Tensor, str]], thoroughly: bool) -> bool:
    """Raise if one of these has no gradient because the model has a part in its place; return True if that was searched
    for.

    fully_shard marks the parameters that it replaces. For other wrappers, and older releases of PyTorch, the live
    modules are searched by name, if asked for `thoroughly`: that takes some milliseconds.
    """
    waiting = [(p, name) for p, name in members if p.grad is None and p.requires_grad and not is_known(p)]
    lost = next((name for p, name in waiting if hasattr(p, MARK)), None)
    search = thoroughly and lost is None and bool(waiting) and "torch.distributed.tensor" in sys.modules
    if search:
        lost = _lost([(p, name) for p, name in waiting if not is_dtensor(p)])
    if lost is not None:
        raise ParameterError(
            f"{lost} is no longer a parameter of its model: the model was sharded after the optimizer was created, "
            "and holds a shard instead. Steps would not reach the model. Create the optimizer after fully_shard or "
            "parallelize_module."
        )
    return search


def _lost(waiting: Iterable[tuple[Tensor, str]]) -> str | None:
    """Return the name of the first one that no module has, if a module has a part of a tensor of that name and shape.

    That part has a gradient, and no optimizer that would step it; otherwise it is another model's.
    """
    dicts = [x.__dict__.get("_parameters", {}) for x in alive(nn.Module)]
    held = [(name, p) for one in dicts for name, p in one.items() if p is not None]
    groups = [group for x in alive(Optimizer) for group in x.__dict__.get("param_groups", ())]
    stepped = {id(p) for group in groups for p in group.get("params", ())}
    left = [(name, p) for name, p in held if p.is_leaf and p.grad is not None and id(p) not in stepped]
    known, cut = {id(p) for _, p in held}, {each for name, p in left for each in _parts(name, p)}
    keys = ((name, id(p), (name.rpartition(".")[2], p.shape)) for p, name in waiting)
    return next((name for name, number, key in keys if number not in known and key in cut), None)


def _parts(name: str, p: Tensor) -> list[tuple[str, Shape]]:
    """Return the names and shapes of the whole tensors whose parts these are."""
    found = tensors_in(p)
    return found if found is not None else [(name, p.shape)] if is_dtensor(p) else []
