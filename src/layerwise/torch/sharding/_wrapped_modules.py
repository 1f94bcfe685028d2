"""Traces of wrappers in a model: FSDP2's units, whose gradients arrive together, and parameters that replace others."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from layerwise.core.plan import Shape
from layerwise.errors import ParameterError
from layerwise.torch.sharding._cuts import is_described
from layerwise.torch.sharding._dtensors import is_dtensor

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
    waiting = [(p, name) for p, name in members if p.grad is None and p.requires_grad and not is_described(p)]
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


# ---- parameters that other packages have flattened, and that were not described


# Packages that put flat partitions into the groups of optimizers, and how to describe these.
DESCRIBED_BY = {
    "deepspeed": "Call layerwise.torch.flat.from_deepspeed(engine) on all ranks, after deepspeed.initialize.",
    "megatron.core": "Call layerwise.torch.flat.from_megatron(optimizer) on all ranks, and use its groups.",
}


def check_own(params: Callable[[], Iterable[tuple[Tensor, str]]], added: Collection[Tensor]) -> None:
    """Raise if a wrapper has replaced parameters by a flat partition that was not described."""
    wrapper = next((each for each in DESCRIBED_BY if each in sys.modules), None)
    if wrapper is None:
        return
    for p, name in params():
        if p.ndim != 1 or is_described(p):
            continue
        if "megatron.core" in sys.modules and not isinstance(p, nn.Parameter):  # as its shards are
            wrapper = "megatron.core"
        elif not added or p in added:
            continue
        raise ParameterError(
            f"{name} seems to be a flat partition of {wrapper}, which replaces parameters and does not say which. "
            f"{DESCRIBED_BY[wrapper]}"
        )


def is_marked(p: Tensor) -> bool:
    """Return True if FSDP1 has flattened a parameter, or may have."""
    return hasattr(p, "_is_flat_param") or hasattr(p, "_fsdp_flattened")


def check_described(name: str, p: Tensor) -> None:
    """Raise if FSDP1 has flattened a parameter, and it was not described."""
    if not is_marked(p) or is_described(p):
        return
    # Without other processes to divide among, it keeps the parameters' shapes, if it keeps the parameters.
    alone = not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1
    if hasattr(p, "_is_flat_param") or (not alone and getattr(p, "_fsdp_flattened", False)):
        raise ParameterError(
            f"{name} is a flat shard of FullyShardedDataParallel, which does not say of which tensors. Call "
            "layerwise.torch.flat.from_fsdp1(model) on all ranks before creating the optimizer, or shard the model "
            "with torch.distributed.fsdp.fully_shard (FSDP2)."
        )


def tensors_in(p: Any) -> list[tuple[str, Shape]] | None:
    """Return the names and shapes of the tensors that FSDP1 has put into a parameter, or None."""
    if not hasattr(p, "_is_flat_param"):
        return None
    return [(info.param_name, shape) for info, shape in zip(p._param_infos, p._shapes, strict=True)]
