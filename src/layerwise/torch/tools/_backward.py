"""Stepping each parameter during the backward pass, as soon as its gradient is there."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any
from weakref import ref

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from layerwise import checks
from layerwise.engines.compiled import signals_wait
from layerwise.errors import ContradictionError, HyperparameterError, ParameterError, sentence
from layerwise.hyper import Hyper
from layerwise.torch._optimizer import Optimizer
from layerwise.torch.sharding import _cuts as cuts


class InBackward:
    """The hooks that step an optimizer's parameters; `remove()` takes them off."""

    def __init__(self, optimizer: Optimizer, every: int, alone: bool) -> None:
        # The parameters hold the hooks, and the optimizer the parameters: a reference to it would close a circle, in
        # which weights and state wait for the garbage collector.
        self._optimizer, self._every, self._alone = ref(optimizer), every, alone
        self._searched = False
        self._check_alone(optimizer)
        self._passes: Counter[int] = Counter()  # by the parameters' identities
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._hook(i))
            for i, group in enumerate(optimizer.param_groups)
            for p in group["params"]
            if p.requires_grad
        ]
        # What the last pass did not reach is stepped by optimizer.step(), and what is zeroed begins again.
        self._hooks.append(optimizer.register_step_post_hook(lambda *_: self._passes.clear()))
        optimizer._when_zeroed.append(self._passes.clear)

    def _hook(self, number: int) -> Any:
        def step(p: Tensor) -> None:
            optimizer = self._there()
            self._check_alone(optimizer)  # once more, because the model may have been wrapped since the hooks were made
            self._searched = cuts.in_group()
            self._passes[id(p)] += 1
            if self._passes[id(p)] < self._every or (g := p.grad) is None:
                return
            with signals_wait:
                del self._passes[id(p)]
                group = optimizer.param_groups[number]
                h = optimizer._settings_of(group)
                _refuse(h)
                optimizer._step_due([optimizer._due_of(number, group, h, [p], [g])])
                p.grad = None

        return step

    def _there(self) -> Optimizer:
        optimizer = self._optimizer()
        if optimizer is None:
            raise ParameterError(
                "the optimizer that steps this parameter in the backward pass no longer exists. Keep a reference to it "
                "while you train; to train without it, call remove() on what step_in_backward() returned."
            )
        return optimizer

    def _check_alone(self, optimizer: Optimizer) -> None:
        """Raise where gradients may be those of this process alone, before others' are added to them."""
        if not cuts.in_group():
            return
        if not self._alone and cuts.several_processes():
            raise ContradictionError(
                "step_in_backward would step with the gradients of this process alone, and this is one of several: "
                "DistributedDataParallel and others add up gradients after the hooks of a backward pass. Call "
                "optimizer.step() after it; pass alone=True where no other process has these parameters."
            )
        if not self._searched and _in_ddp(optimizer):
            raise ContradictionError(
                "step_in_backward steps before DistributedDataParallel has added up the gradients, which it keeps in "
                "its buckets, so that nothing would be freed either. Call optimizer.step() after the backward pass."
            )

    def remove(self) -> None:
        """Step in `optimizer.step()` again; a second call changes nothing."""
        for hook in self._hooks:
            hook.remove()
        optimizer = self._optimizer()
        if self._hooks and optimizer is not None:
            optimizer._when_zeroed.remove(self._passes.clear)
        self._hooks.clear()


def step_in_backward(optimizer: Optimizer, every: int = 1, *, alone: bool = False) -> InBackward:
    """Step each parameter in the backward pass and free its gradient at once.

    Gradients then never exist all at the same time. With gradient accumulation the step is taken in the last of
    `every` backward passes. `optimizer.step()` then finds gradients only of what the last pass did not reach, so a
    training loop, its learning rate schedulers and its checkpoints stay as they are.

    Where gradients are added up over processes, that happens after the step would be taken. So a process that is one
    of several is refused, unless it has a model to itself: `alone=True`. A model in DistributedDataParallel is refused.
    """
    if not isinstance(optimizer, Optimizer):
        raise HyperparameterError(
            sentence("optimizer", "one of layerwise.torch itself", optimizer, "What wraps one steps by itself.")
        )
    checks.FLAG("alone", alone, "Pass True if no other process has these parameters.")
    every = checks.integer(1)("every", every, "Pass the number of backward passes whose gradients make one step.")
    for group in optimizer.param_groups:
        _refuse(optimizer._settings_of(group))
    if optimizer._agreement() is not None:
        raise ContradictionError(
            "step_in_backward is for parameters that are whole on one process: sharded ones would need a collective "
            "each. Call optimizer.step() after the backward pass, which needs one or two for all of them."
        )
    return InBackward(optimizer, every, alone)


def _in_ddp(optimizer: Optimizer) -> bool:
    """Return whether a DistributedDataParallel that is alive holds one of the parameters."""
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    found = [x for x in gc.get_objects() if issubclass(type(x), DistributedDataParallel)]
    return any(id(p) in own for ddp in found for p in ddp.parameters())


def _refuse(h: Hyper) -> None:
    if h.asks_of_model:
        raise ContradictionError(
            sentence(
                "max_grad_norm",
                "None in the backward pass",
                h.model_bound,
                "It needs all gradients at once; max_grad_norm_per_tensor needs one.",
            )
        )
