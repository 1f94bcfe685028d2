"""Steps during the backward pass, as soon as each gradient arrives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any
from weakref import ref

from torch import Tensor

from layerwise import checks
from layerwise.engines.compiled import signals_wait
from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.torch._alone import Alone
from layerwise.torch._optimizer import Optimizer
from layerwise.torch.sharding import _cuts as cuts
from layerwise.torch.sharding._modules import units_of
from layerwise.torch.sharding._owner import stepper_of
from layerwise.torch.tools._by_module import ByModule, there


class InBackward:
    """The hooks that step an optimizer's parameters; `remove()` removes them."""

    def __init__(self, optimizer: Optimizer, every: int, alone: bool, units: Mapping[int, int]) -> None:
        # The parameters hold the hooks, and the optimizer the parameters: a reference to it would close a circle, in
        # which weights and state wait for the garbage collector.
        self._optimizer, self._every, self._alone = ref(optimizer), every, alone
        self._passes: Counter[int] = Counter()  # by the parameters' identities
        self._by_module = ByModule(optimizer, every, units) if units else None
        # Beside sharded parameters, gradients of others may still have to be added up over processes.
        reduces = self._by_module is not None and self._by_module.reduces
        one_by_one = alone or not reduces or not cuts.several_processes()
        if one_by_one:
            self._check_alone(optimizer, steps=False)
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._hook(i) if by_module is None else by_module.hook(i))
            for i, group in enumerate(optimizer.param_groups)
            for p in group["params"]
            for by_module in [self._by_module if id(p) in units else None]
            if p.requires_grad and (by_module is not None or one_by_one)
        ]
        # What the last pass did not reach is stepped by optimizer.step(), and what is zeroed begins again.
        self._hooks.append(optimizer.register_step_post_hook(lambda *_: self._forget()))
        stepper_of(optimizer).when_zeroed.append(self._forget)

    def _hook(self, number: int) -> Any:
        def step(p: Tensor) -> None:
            optimizer = there(self._optimizer)
            self._check_alone(optimizer)  # once more, because the model may have been wrapped since the hooks were made
            self._passes[id(p)] += 1
            if self._passes[id(p)] < self._every or p.grad is None:
                return
            with signals_wait:
                del self._passes[id(p)]
                Alone(stepper_of(optimizer)).step_and_free([(number, p)], stepper_of(optimizer).ranks.agreement())

        return step

    def _forget(self) -> None:
        self._passes.clear()
        if self._by_module is not None:
            self._by_module.forget()

    def _check_alone(self, optimizer: Optimizer, steps: bool = True) -> None:
        """Raise if gradients may belong to this process alone, before those of others are added."""
        if not cuts.in_group():
            return
        if not self._alone and cuts.several_processes():
            raise ContradictionError(
                "step_in_backward would step with the gradients of this process alone, and this is one of several: "
                "DistributedDataParallel and others add up gradients after the hooks of a backward pass. Call "
                "optimizer.step() after it; pass alone=True where no other process has these parameters."
            )
        Alone(stepper_of(optimizer)).check_reduced("step_in_backward", steps)

    def remove(self) -> None:
        """Step in `optimizer.step()` again; a second call changes nothing."""
        for hook in self._hooks:
            hook.remove()
        optimizer = self._optimizer()
        if self._hooks and optimizer is not None:
            stepper_of(optimizer).when_zeroed.remove(self._forget)
        self._hooks.clear()


def step_in_backward(optimizer: Optimizer, every: int = 1, *, alone: bool = False) -> InBackward:
    """Step each parameter in the backward pass and free its gradient at once.

    Gradients then never exist all at the same time. `optimizer.step()` steps only the parameters that the last backward
    pass did not reach, so a training loop, its schedulers and its checkpoints stay as they are. Call remove() of the
    result to step in `optimizer.step()` again.

    The parameters of modules of `fully_shard` are stepped module by module, when the gradients of the next one have
    been reduced, by all processes or by none. Parameters beside them are left to `optimizer.step()`.
    DistributedDataParallel is refused, because it adds up gradients after the step would be taken.

    Args:
        optimizer: An optimizer of `layerwise.torch`.
        every: The number of backward passes whose gradients accumulate. The step is taken in the last of them.
        alone: Say that no other process has these parameters, in a process that is one of several, without
            `fully_shard`.
    """
    if not isinstance(optimizer, Optimizer):
        raise HyperparameterError(
            sentence("optimizer", "one of layerwise.torch itself", optimizer, "What wraps one steps by itself.")
        )
    checks.FLAG("alone", alone, "Pass True if no other process has these parameters.")
    every = checks.integer(1)("every", every, "Pass the number of backward passes whose gradients make one step.")
    for group in optimizer.param_groups:
        Alone(stepper_of(optimizer)).refuse(stepper_of(optimizer).settings_of(group))
    units = units_of(optimizer.parameters())
    if stepper_of(optimizer).ranks.agreement() is not None:
        _check_sharded(optimizer, alone, units)
    return InBackward(optimizer, every, alone, units)


def _check_sharded(optimizer: Optimizer, alone: bool, units: Mapping[int, int]) -> None:
    """Raise unless fully_shard tells for some parameters when their gradients are complete."""
    if not units:
        raise ContradictionError(
            "step_in_backward steps sharded parameters module by module, as fully_shard reduces their gradients, and "
            "these belong to no module of fully_shard: each would need a collective of its own. Call optimizer.step() "
            "after the backward pass, which needs one or two for all of them."
        )
    if alone:
        raise ContradictionError(
            sentence("alone", "False with sharded parameters", alone, "Other processes have parts of these parameters.")
        )
