"""Modules of FSDP2: which parameters get their gradients together, and which of a module's passes are still to come."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from layerwise.errors import ContradictionError
from layerwise.torch.sharding._cuts import is_dtensor

NO_PASS = -1  # PyTorch's number for "no backward pass runs"
Unit = frozenset[int]  # the modules whose gradients FSDP2 reduces at once, by identity


def current_pass() -> int:
    """Return the number of the backward pass that runs in this thread, or NO_PASS."""
    number: int = torch._C._current_graph_task_id()
    return number


def at_end_of_pass(call: Callable[[], None]) -> None:
    """Call this once the backward pass that runs has computed everything."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(call)


def check_passes() -> None:
    """Raise if this PyTorch does not say when a backward pass ends: there is no public way to learn it."""
    engine = getattr(torch.autograd.Variable, "_execution_engine", None)
    if not hasattr(torch._C, "_current_graph_task_id") or not hasattr(engine, "queue_callback"):
        raise ContradictionError(
            f"step_in_backward with parameters of fully_shard needs to know when a backward pass ends, which PyTorch "
            f"{torch.__version__} does not say where it is looked for. Call optimizer.step() after the backward pass."
        )


class Modules:
    """The FSDP modules that hold some parameters: owners and units by the identities of these."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        wanted = {id(p) for p in params if is_dtensor(p)}
        found = list(_fsdp_modules()) if wanted else []
        self.owners = _owners(found, wanted)
        if found and wanted - self.owners.keys():
            # After a forward pass without a backward one, modules have whole parameters in place of sharded ones.
            for module in found:
                module.reshard()
            self.owners = _owners(found, wanted)
        self.all = [module for module in found if any(id(module) in each for each in self.owners.values())]
        units = {id(module): _unit(module) for module in self.all}
        self.units = {p: frozenset(units[module] for module in each) for p, each in self.owners.items()}


def _fsdp_modules() -> Iterator[Any]:
    """Yield the modules of fully_shard that are alive."""
    fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return (x for x in gc.get_objects() if issubclass(type(x), fsdp)) if fsdp is not None else iter(())


def _owners(modules: Iterable[Any], wanted: set[int]) -> dict[int, Unit]:
    """Return by parameter the modules that have it, themselves or in a submodule that is none of them."""
    modules = list(modules)
    among, found = {id(module) for module in modules}, dict[int, set[int]]()
    for module in modules:
        for p in _own_parameters(module, among):
            if id(p) in wanted:
                found.setdefault(id(p), set()).add(id(module))
    return {p: frozenset(each) for p, each in found.items()}


def _own_parameters(module: nn.Module, others: set[int]) -> Iterator[Tensor]:
    yield from module.parameters(recurse=False)
    for child in module.children():
        if id(child) not in others:
            yield from _own_parameters(child, others)


def _unit(module: Any) -> int:
    """Return one number for all modules that a call of fully_shard took together."""
    from torch.distributed.fsdp import fully_shard

    state_of = getattr(fully_shard, "state", None)
    state = None if state_of is None else state_of(module)
    return id(module if state is None else state)


class _Use:
    """One forward pass of a module. Only the graph of that pass refers to it, so it goes with the graph."""

    __slots__ = ("__weakref__", "reached")

    def __init__(self) -> None:
        self.reached = NO_PASS  # the backward pass that has come to it


class Uses:
    """The forward passes of modules of which the backward pass is still to come.

    A module that is used twice in a forward pass gets its gradients in two parts.
    """

    def __init__(self, modules: Modules) -> None:
        self._owners: Mapping[int, Unit] = modules.owners
        self._open: dict[int, WeakSet[_Use]] = {id(module): WeakSet() for module in modules.all}
        self._repeated = NO_PASS
        self.hooks = [module.register_forward_hook(self._used) for module in modules.all]

    def more_to_come(self, p: Tensor) -> bool:
        """Return whether another part of this parameter's gradient may follow in the backward pass that runs."""
        # Of a graph that is gone through once more it is not known which of its uses this pass has reached.
        return self._repeated == current_pass() or any(self._open[module] for module in self._owners[id(p)])

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _used(self, module: nn.Module, args: Any, output: Any) -> None:
        # What checkpointing computes again in the backward pass has been noted in the forward pass.
        if not torch.is_grad_enabled() or current_pass() != NO_PASS:
            return
        use, opened = _Use(), self._open[id(module)]
        hooked: Any
        for hooked in _tensors(output):
            opened.add(use)
            hooked.register_hook(partial(self._reached, id(module), use))

    def _reached(self, module: int, use: _Use, grad: Any) -> None:
        now = current_pass()
        if use.reached == NO_PASS:
            use.reached = now
            self._open[module].discard(use)
        elif use.reached != now:
            self._repeated = now


def _tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors in a module's output through which a backward pass may come."""
    if isinstance(output, Tensor):
        if output.requires_grad:
            yield output
        return
    parts: Iterable[Any] = ()
    if isinstance(output, Mapping):
        parts = output.values()
    elif isinstance(output, (list, tuple)):
        parts = output
    elif is_dataclass(output):
        parts = [getattr(output, field.name) for field in fields(output)]
    for part in parts:
        yield from _tensors(part)
