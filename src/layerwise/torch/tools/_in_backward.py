"""Steps during the backward pass, as soon as gradients arrive: each, or those that FSDP2 reduces together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from layerwise.engines.compiled import signals_wait
from layerwise.errors import ContradictionError, ParameterError, sentence
from layerwise.options import checks
from layerwise.torch._optimizer import Optimizer
from layerwise.torch.sharding import _cuts as cuts
from layerwise.torch.sharding._agreement import Agreement
from layerwise.torch.sharding._wrapped_modules import NO_PASS, NO_UNIT, at_end_of_pass, current_pass, units_of
from layerwise.torch.step._partial import PartialSteps
from layerwise.torch.step._stepper import stepper_of
from layerwise.torch.tools._weights import checked_optimizer

LEFT = "this module was not stepped; the modules before it in this backward pass were"


class InBackward:
    """The hooks that step an optimizer's parameters; `remove()` removes them.

    FSDP2 calls the hooks of a module's parameters when their gradients are reduced, one after the other. That is a
    point in the order of collectives, which is the same on all processes whatever else differs on them. So each module
    has its turn at the first hook of the next one, or when the backward pass ends, also if nothing of it is to be
    stepped: there processes meet and find out if they disagree. Other parameters are stepped in their own hooks.
    """

    def __init__(self, optimizer: Optimizer, every: int, alone: bool, units: Mapping[int, int]) -> None:
        # The parameters hold the hooks, and the optimizer the parameters: a reference to it, or to modules, would
        # create a cycle, in which weights and state wait for the garbage collector.
        self._optimizer, self._every, self._alone, self._units = ref(optimizer), every, alone, units
        self._passes: Counter[int] = Counter()  # by the parameters' ids, as everything below
        self._cuts = {id(p): cuts.cut_of("a parameter", p) for p in optimizer.parameters() if id(p) in units}
        self._agreements: dict[int, Agreement | None] = {}  # by unit
        self._begin(NO_PASS)
        # Whether gradients are reduced over processes; fully_shard on one of several processes leaves that to others.
        # Gradients of parameters outside its modules may then still have to be reduced.
        reduces = any(cut.axes or cut.replicas for cut in self._cuts.values())
        one_by_one = alone or not reduces or not cuts.several_processes()
        if one_by_one:
            self._check_alone(optimizer, steps=False)
        self._hooks = [
            p.register_post_accumulate_grad_hook(partial(self._of_module if id(p) in units else self._by_itself, i))
            for i, group in enumerate(optimizer.param_groups)
            for p in group["params"]
            if p.requires_grad and (id(p) in units or one_by_one)
        ]
        # Parameters that the last pass did not reach are stepped by optimizer.step(), and zeroed gradients start again.
        self._hooks.append(optimizer.register_step_post_hook(lambda *_: self._forget()))
        self._hooks.append(optimizer.register_step_pre_hook(_check_unscaled))
        stepper_of(optimizer).when_zeroed.append(self._forget)
        stepper_of(optimizer).in_backward = True

    def _there(self) -> Optimizer:
        found = self._optimizer()
        if found is None:
            raise ParameterError(
                "the optimizer that steps this parameter in the backward pass no longer exists. Keep a reference to "
                "it while you train. To train without it, call remove() on the object that step_in_backward() "
                "returned."
            )
        return found

    def _begin(self, number: int) -> None:
        """Begin a backward pass. Leftovers of a failed pass stay as they are."""
        self._pass = number
        self._ends: bool = False  # whether its end will be noticed
        self._unit = NO_UNIT  # of the parameters that wait
        self._waiting: dict[int, tuple[int, ReferenceType[Tensor]]] = {}
        self._stream: torch.Stream | None = None

    def _by_itself(self, number: int, p: Tensor) -> None:
        optimizer = self._there()
        self._check_alone(optimizer)  # once more, because the model may have been wrapped since the hooks were made
        self._passes[id(p)] += 1
        if self._passes[id(p)] < self._every or p.grad is None:
            return
        with signals_wait:
            del self._passes[id(p)]
            PartialSteps(stepper_of(optimizer)).step_and_free([(number, p)], stepper_of(optimizer).ranks.agreement())

    def _of_module(self, number: int, p: Tensor) -> None:
        """Record a parameter that is stepped with the others of its module, after the turn of the previous module."""
        if current_pass() != self._pass:
            self._begin(current_pass())
        if not self._ends:
            at_end_of_pass(self._end)
            self._ends = True
        unit = self._units[id(p)]
        if self._unit not in (NO_UNIT, unit):
            self._turn()
        self._unit = unit
        self._passes[id(p)] += 1
        self._waiting[id(p)] = number, ref(p)  # a failed pass leaves these behind
        if p.device.type != "cpu":
            self._stream = torch.accelerator.current_stream(p.device)  # on which the gradient is computed

    def _end(self) -> None:
        """Give the last module of the pass its turn."""
        self._ends = False
        if self._unit != NO_UNIT:
            self._turn()

    def _turn(self) -> None:
        """Step the waiting parameters that are due, and free their gradients."""
        ripe = [one for key, one in self._waiting.items() if self._passes[key] >= self._every]
        due = [(number, p) for number, waiting in ripe if (p := waiting()) is not None]
        agreement = self._agreement_about(self._unit)
        self._waiting, self._unit = {}, NO_UNIT
        with signals_wait:
            self._await_gradients()
            with nullcontext() if agreement is None else agreement.reports_errors():
                stepper = stepper_of(self._there())
                stepper.ranks.agreement()  # this finds changes of the parameters
                PartialSteps(stepper).step_and_free(due, agreement)
            for _, p in due:
                del self._passes[id(p)]

    def _agreement_about(self, unit: int) -> Agreement | None:
        """Return the agreement on the turns of a module; each agreement has its own list of sums."""
        if unit not in self._agreements:
            # With the processes that hold other parts of these very parameters: others may have none.
            axes, replicas = cuts.axes_of([cut for key, cut in self._cuts.items() if self._units[key] == unit])
            self._agreements[unit] = Agreement(axes, replicas, left=LEFT) if axes else None
        return self._agreements[unit]

    def _await_gradients(self) -> None:
        """Make the stream of the step wait for the stream that reduced the gradients."""
        if self._stream is not None:
            here = torch.accelerator.current_stream(self._stream.device)
            if here != self._stream:
                here.wait_stream(self._stream)

    def _forget(self) -> None:
        """Begin to count passes again: gradients were stepped elsewhere, or are gone."""
        self._passes.clear()
        self._begin(NO_PASS)

    def _check_alone(self, optimizer: Optimizer, steps: bool = True) -> None:
        """Raise if gradients may belong to this process alone, before those of other processes are added."""
        if not cuts.in_group():
            return
        if not self._alone and cuts.several_processes():
            raise ContradictionError(
                "step_in_backward would use only this process's gradients, but there are several processes: "
                "DistributedDataParallel and others reduce gradients after the hooks of a backward pass. Call "
                "optimizer.step() after it, or pass alone=True if no other process has these parameters."
            )
        PartialSteps(stepper_of(optimizer)).check_reduced("step_in_backward", steps)

    def remove(self) -> None:
        """Step in `optimizer.step()` again; a second call changes nothing."""
        for hook in self._hooks:
            hook.remove()
        optimizer = self._optimizer()
        if self._hooks and optimizer is not None:
            stepper_of(optimizer).when_zeroed.remove(self._forget)
            stepper_of(optimizer).in_backward = False
        self._hooks.clear()


def _check_unscaled(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Raise if a GradScaler calls the step, whose gradients the backward pass has used with its scale."""
    if getattr(optimizer, "found_inf", None) is not None:
        for left in ("found_inf", "grad_scale"):  # by the scaler, after an error
            delattr(optimizer, left)
        raise ContradictionError(
            "step_in_backward() steps before a GradScaler can unscale, so this backward pass has stepped with scaled "
            "gradients. Load the last checkpoint, and train in bfloat16, or call remove() and keep the scaler."
        )


def step_in_backward(optimizer: Optimizer, every: int = 1, *, alone: bool = False) -> InBackward:
    """Step each parameter in the backward pass and free its gradient at once.

    Gradients then never exist all at the same time. `optimizer.step()` steps only the parameters that the last backward
    pass did not reach, so the training loop, its schedulers and its checkpoints need no change. To step in
    `optimizer.step()` again, call remove() on the result.

    The parameters of modules of `fully_shard` are stepped module by module, when the gradients of the next one have
    been reduced, by all processes or by none. Parameters outside of these modules are left to `optimizer.step()`.
    DistributedDataParallel is refused, because it reduces gradients only after this step.

    Args:
        optimizer: An optimizer of `layerwise.torch`.
        every: The number of backward passes whose gradients accumulate. The step is taken in the last of them.
        alone: Say that no other process has these parameters, in a process that is one of several, without
            `fully_shard`.
    """
    stepper = stepper_of(checked_optimizer(optimizer, "step_in_backward(optimizer)"))
    if stepper.in_backward:
        raise ContradictionError(
            "this optimizer already steps in the backward pass. First call remove() on the result of the other call."
        )
    checks.FLAG("alone", alone, "Pass True if no other process has these parameters.")
    every = checks.integer(1)("every", every, "Pass the number of backward passes per step.")
    for group in optimizer.param_groups:
        PartialSteps(stepper).refuse(stepper.settings_of(group).h)
    units = units_of(optimizer.parameters())
    if stepper.ranks.agreement() is not None:
        _check_sharded(optimizer, alone, units)
    return InBackward(optimizer, every, alone, units)


def _check_sharded(optimizer: Optimizer, alone: bool, units: Mapping[int, int]) -> None:
    """Raise unless fully_shard signals for some parameters when their gradients are complete."""
    if not units:
        raise ContradictionError(
            "step_in_backward steps sharded parameters module by module, as fully_shard reduces their gradients, but "
            "these belong to no module of fully_shard: each would need a collective of its own. Call "
            "optimizer.step() after the backward pass, which needs one or two for all of them."
        )
    if alone:
        raise ContradictionError(
            sentence(
                "alone", "False with sharded parameters", alone, ("Other processes hold parts of these parameters.")
            )
        )
