"""Stepping each parameter during the backward pass, as soon as its gradient is there."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor

from layerwise import checks
from layerwise.errors import ContradictionError, sentence
from layerwise.hyper import Settings
from layerwise.torch._optimizer import Optimizer
from layerwise.torch._turn import Due


class InBackward:
    """The hooks that step an optimizer's parameters; `remove()` takes them off."""

    def __init__(self, optimizer: Optimizer, every: int) -> None:
        self._optimizer, self._every = optimizer, every
        self._passes: Counter[Tensor] = Counter()
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
            self._passes[p] += 1
            if self._passes[p] < self._every or (g := p.grad) is None:
                return
            del self._passes[p]
            optimizer, group = self._optimizer, self._optimizer.param_groups[number]
            h = optimizer.settings_of(group)
            _refuse(h)
            optimizer.step_due([Due(number, group, h, [p], [g])])
            p.grad = None

        return step

    def remove(self) -> None:
        """Step in `optimizer.step()` again; a second call changes nothing."""
        for hook in self._hooks:
            hook.remove()
        if self._hooks:
            self._optimizer._when_zeroed.remove(self._passes.clear)
        self._hooks.clear()


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
