"""Stepping each parameter during the backward pass, as soon as its gradient is there."""

from __future__ import annotations

from collections import Counter
from typing import Any
from weakref import ref

from torch import Tensor

from layerwise import checks
from layerwise.engines.native import signals_wait
from layerwise.errors import ContradictionError, ParameterError, sentence
from layerwise.hyper import Settings
from layerwise.torch._optimizer import Optimizer
from layerwise.torch._turn import Due


class InBackward:
    """The hooks that step an optimizer's parameters; `remove()` takes them off."""

    def __init__(self, optimizer: Optimizer, every: int) -> None:
        # The parameters hold the hooks, and the optimizer the parameters: a reference to it would close a circle, in
        # which weights and state wait for the garbage collector.
        self._optimizer, self._every = ref(optimizer), every
        self._passes: Counter[int] = Counter()  # by the parameters' identities
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._hook(i))
            for i, group in enumerate(optimizer.param_groups)
            for p in group["params"]
            if p.requires_grad
        ]
        # What the last pass did not reach is stepped by optimizer.step(), and what is zeroed begins anew.
        self._hooks.append(optimizer.register_step_post_hook(lambda *_: self._passes.clear()))
        optimizer._when_zeroed.append(self._passes.clear)

    def _hook(self, number: int) -> Any:
        def step(p: Tensor) -> None:
            self._passes[id(p)] += 1
            if self._passes[id(p)] < self._every or (g := p.grad) is None:
                return
            with signals_wait:
                del self._passes[id(p)]
                optimizer = self._there()
                group = optimizer.param_groups[number]
                h = optimizer.settings_of(group)
                _refuse(h)
                optimizer.step_due([Due(number, group, h, [p], [g])])
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

    def remove(self) -> None:
        """Step in `optimizer.step()` again."""
        for hook in self._hooks:
            hook.remove()
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer._when_zeroed.remove(self._passes.clear)


def step_in_backward(optimizer: Optimizer, every: int = 1) -> InBackward:
    """Step each parameter in the backward pass and free its gradient at once.

    Gradients then never exist all at the same time. With gradient accumulation the step is taken in the last of
    `every` backward passes. `optimizer.step()` then finds gradients only of what the last pass did not reach, so a
    training loop, its learning rate schedulers and its checkpoints stay as they are.
    """
    every = checks.integer(1)("every", every, "Pass the number of backward passes whose gradients make one step.")
    for group in optimizer.param_groups:
        _refuse(optimizer.settings_of(group))
    if optimizer.agreement() is not None:
        raise ContradictionError(
            "step_in_backward is for parameters that are whole on one process: sharded ones would need a collective "
            "each. Call optimizer.step() after the backward pass, which needs one or two for all of them."
        )
    return InBackward(optimizer, every)


def _refuse(h: Settings) -> None:
    if h.asks_of_model:
        raise ContradictionError(
            sentence(
                "max_grad_norm",
                "None in the backward pass",
                h.max_grad_norm,
                "It needs all gradients at once; max_grad_norm_per_tensor needs one.",
            )
        )
