"""What `Lamb`, `Lars` and `Adafactor` have in common as PyTorch optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from struct import pack
from typing import Any

import torch
from torch import Tensor

from layerwise import checks
from layerwise.blocks import Blocks, as_blocks
from layerwise.engines import Changed
from layerwise.engines.native import signals_wait
from layerwise.errors import (
    ContradictionError,
    HyperparameterError,
    ParameterError,
    SynchronizationError,
    sentence,
)
from layerwise.hyper import Settings
from layerwise.names import ByName, check_matched
from layerwise.torch import _cuts as cuts
from layerwise.torch import _loading, _state, _tensors
from layerwise.torch._engines import FUSED, check_fused, engine_name, engine_of
from layerwise.torch._peers import Agreement, Skipped, check_model_group
from layerwise.torch._plan import Plan, plan_of
from layerwise.torch._settings import NOT_OF_A_GROUP, Groups, capturing, check_capture, named, proportional_rates
from layerwise.torch._turn import Due, Here, Turn, grads_of, params_of

MOST_TURNS = 16  # different sets of parameters whose steps are kept prepared


def _check_blocks(argument: str, value: Any) -> Blocks:
    return as_blocks(value, argument)


class Optimizer(torch.optim.Optimizer):
    """A `torch.optim.Optimizer` that carries out a rule."""

    _rule: Any
    _hyper: type[Settings]
    _step_supports_amp_scaling = True

    def __init__(self, params: Any, given: Mapping[str, Any]) -> None:
        """`given` holds every argument of the subclass by name."""
        self._groups = Groups(self._hyper, given["differentiable"])
        defaults = {name: given[name] for name in self._groups.known}
        self._by_name = ByName("blocks", given["blocks"], None, _check_blocks)
        self._skip_nonfinite = checks.FLAG("skip_nonfinite", given["skip_nonfinite"], "Pass True or False.")
        self._engine = engine_name(given["fused"])
        self._model_group = check_model_group(given["model_group"])
        self._of_all = {name: given[name] for name in NOT_OF_A_GROUP}
        self._forget_plans()
        self._captured: list[Turn] = []  # what CUDA graphs replay
        self._agreed = Agreement((), (), self._model_group)
        self._axes: tuple[cuts.Axis, ...] | None = None  # of all parameters; None where some are new
        self._when_zeroed: list[Callable[[], None]] = []
        self._skipped: int | Tensor = 0
        self._groups.check(defaults)
        if given["fused"] is True and given["differentiable"]:
            way_out = "Drop one of them: kernels are not differentiated through."
            raise ContradictionError(sentence("fused", "None or False when differentiable=True", True, way_out))
        super().__init__(params, defaults)
        if self._model_group is None:  # else what a pattern means may be elsewhere
            check_matched("blocks", self._by_name.patterns, [name for _, name in self._members()])

    def _forget_plans(self) -> None:
        self._plans: dict[Tensor, Plan] = {}
        self._turns: dict[bytes, Turn] = {}  # by their parameters, the last taken at the end

    # What torch's own __getstate__ leaves out is what is ours.
    def __getstate__(self) -> dict[str, Any]:
        own = {key: self.__dict__[key] for key in ("_by_name", "_skip_nonfinite", "_engine", "_groups", "_skipped")}
        own |= {key: self.__dict__[key] for key in ("_of_all", "_model_group")}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._when_zeroed = []
        self._forget_plans()
        self._axes = None
        # torch comes here with every checkpoint, which changes nothing about these.
        self.__dict__.setdefault("_captured", [])
        self.__dict__.setdefault("_agreed", Agreement((), (), self._model_group))
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
            self._groups.settle(group)

    # ---- groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own; other options are as they were given to the optimizer."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        # A copy, because torch fills a group with defaults, which are not the caller's to see. What the optimizer was
        # told itself may be repeated: wrappers such as ZeroRedundancyOptimizer say everything in every group.
        group = {key: x for key, x in param_group.items() if key not in self._of_all or x is not self._of_all[key]}
        self._groups.check_keys(group)
        group = {**self.defaults, **group}
        self._groups.check(group)
        self._groups.settle(group)
        super().add_param_group(group)
        self._axes = None
        try:
            self._check_members(self.param_groups[-1], len(self.param_groups) - 1)
        except Exception:
            self.param_groups.pop()
            raise

    def _check_members(self, group: Mapping[str, Any], number: int) -> None:
        self._groups.check_rates_for(group)
        for p, name in named(group, number):
            _tensors.check_parameter(name, p)
            cuts.cut_of(name, p)
            if self._engine == FUSED:
                check_fused(name, p.device.type)
        if isinstance(self._by_name.given, Mapping) and "param_names" not in group:
            raise HyperparameterError(
                sentence("blocks", "None for parameters without names", self._by_name.given, "Pass named_parameters().")
            )

    def _members(self) -> list[tuple[Tensor, str]]:
        """All parameters with their names."""
        return [each for i, group in enumerate(self.param_groups) for each in named(group, i)]

    # ---- the step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step every parameter that has a gradient; `closure` reevaluates the model and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        agreement = self.agreement()
        with nullcontext() if agreement is None else agreement.told_of_errors(self._might_skip()):
            self.step_due(self._due())
        return loss

    def _might_skip(self) -> bool:
        return self._skip_nonfinite or getattr(self, "found_inf", None) is not None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        super().zero_grad(set_to_none)
        for forget in self._when_zeroed:
            forget()

    def settings_of(self, group: Mapping[str, Any]) -> Settings:
        """The group's hyperparameters, if all it says is right."""
        self._groups.forget(len(self.param_groups))
        h = self._groups.check(group)
        self._groups.check_rates_for(group)
        check_capture(group)
        if self._model_group is not None and h.asks_of_model and h.max_grad_norm_per_tensor:
            raise ContradictionError(
                sentence(
                    "max_grad_norm_per_tensor",
                    "None with max_grad_norm and a model_group",
                    h.max_grad_norm_per_tensor,
                    "Drop one of them: the norm of all could not be had in the first round.",
                )
            )
        return h

    def _due(self) -> list[Due]:
        groups = list(enumerate(self.param_groups))
        settings = [self.settings_of(group) for _, group in groups]
        if any(h.asks_of_model for h in settings):
            settings = [self._groups.counted(h) for h in settings]
        given = [_with_gradients(group["params"]) for _, group in groups]
        return [Due(*group, h, *both) for group, h, both in zip(groups, settings, given, strict=True) if both[0]]

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # its tracer loses count of rules that wait
    def step_due(self, dues: Sequence[Due]) -> None:
        """Step these parameters together: all, or none if one of them cannot be."""
        agreement = self.agreement()
        if not dues and agreement is None:
            return
        with signals_wait, torch.set_grad_enabled(self._groups.differentiable):
            # First, because it may take collectives, which those for whom something is wrong have to join.
            params, grads = params_of(dues), grads_of(dues)
            here = cuts.here(params, grads) if self._wrapped else (params, grads)
            key, turn, plans = self._kept_turn(dues, params, grads)
            skip = _tensors.to_skip(here[1], getattr(self, "found_inf", None), self._skip_nonfinite)
            skips = None
            if agreement is not None:
                skips = bool(skip) if self._might_skip() else None
                skip = None  # what the others say decides as well, and they are waited for anyway
            elif isinstance(skip, bool):
                self._skipped += 1
                return
            new = [p for due in dues for p in due.params if p not in self.state] if turn is None else []
            if turn is None or turn.on_device != (skip is not None):
                turn = self._prepare(dues, here, plans or list(self._planned(dues)), skip is not None)
            try:
                turn = self._stepped(turn, dues, here, skip, skips)
            except (Skipped, SynchronizationError) as answer:
                for p in new:  # a step that is not taken leaves no trace
                    del self.state[p]
                if not isinstance(answer, Skipped):
                    raise
                self._skipped += 1
                return
            self._remember(key, turn)
            if skip is not None:
                self._skipped += skip  # in place, so that a captured step counts on

    def _stepped(self, turn: Turn, dues: Sequence[Due], here: Here, skip: Tensor | None, skips: bool | None) -> Turn:
        """Take the step, by another turn where the engine finds that this one holds no longer."""
        given = here[1], skip, getattr(self, "grad_scale", None), skips
        try:
            turn.step(dues, *given)
        except Changed:
            plans = list(self._planned(dues))
            if not turn.holds(grads_of(dues), self.state, at_once=False):
                turn = self._prepare(dues, here, plans, skip is not None)
            turn.step(dues, *given)
        return turn

    def _kept_turn(
        self, dues: Sequence[Due], params: list[Tensor], grads: list[Tensor]
    ) -> tuple[bytes, Turn | None, Sequence[Plan]]:
        """The turn these parameters had before, if everything is as it was; if not, their plans, checked."""
        key = pack(f"{len(params)}N", *map(id, params))  # bytes, which remember their hash
        turn = self._turns.get(key)
        at_once = not self._might_skip()  # else the gradients are computed with before the engine looks at them
        if self._groups.differentiable:
            turn = None
        if turn is not None and turn.holds(grads, self.state, at_once) and turn.takes(dues):
            return key, turn, ()
        return key, None, list(self._planned(dues))

    def agreement(self) -> Agreement | None:
        """What is agreed upon with those who hold other parts of the parameters, if there are any."""
        if self._axes is None:
            members = self._members()
            found = [cuts.cut_of(name, p) for p, name in members]
            axes, replicas = cuts.axes_of(found)
            self._wrapped = any(cut is not None for cut in found)
            shared = bool(axes) or self._model_group is not None
            if shared and self._groups.differentiable:
                raise ContradictionError(
                    sentence("differentiable", "False with sharded parameters", True, "Differentiate on one process.")
                )
            self._axes, self._shares = axes, shared
            # Kept if it can be: else the others would be told in a layout that they do not know.
            if (self._agreed.axes, self._agreed.replicas) != (axes, replicas):
                self._agreed = Agreement(axes, replicas, self._model_group)
                self._turns.clear()
        return self._agreed if self._shares else None

    def _planned(self, dues: Sequence[Due]) -> Iterator[Plan]:
        """How each parameter is to be stepped, if all of them can be."""
        for due in dues:
            names = dict(named(due.group, due.number))
            for p, g in zip(due.params, due.grads, strict=True):
                yield self._checked(p, g, due, names[p])

    def _checked(self, p: Tensor, g: Any, due: Due, name: str) -> Plan:
        _tensors.check_parameter(name, p)
        _tensors.check_gradient(name, p, g)
        if due.group["differentiable"] and p.is_leaf and p.requires_grad:
            raise ParameterError(
                f"{name} is a leaf that requires grad, which a differentiable step cannot write to. Step a clone of it."
            )
        cuts.check_alike(name, p, g)
        plan = self._plans.get(p)
        if plan is not None and plan.shape != p.shape:
            raise ParameterError(
                f"{name} had the shape {tuple(plan.shape)}, now {tuple(p.shape)}. Make the optimizer anew."
            )
        if plan is None or (plan.name, plan.h, plan.dtype, plan.cut) != (name, due.h, p.dtype, cuts.cut_of(name, p)):
            plan = self.plan_for(p, due.h, name)
        _state.check_kept(plan, self.state.get(p, {}))
        return plan

    def plan_for(self, p: Tensor, h: Settings, name: str) -> Plan:
        """How this parameter is to be stepped with these settings."""
        return plan_of(self._rule, p, h, name, self._by_name(name))

    def _prepare(self, dues: Sequence[Due], here: Here, plans: Sequence[Plan], on_device: bool) -> Turn:
        differentiable = self._groups.differentiable
        each = iter(plans)
        for due in dues:
            where = on_device or due.group["capturable"]
            for p in due.params:
                self._plans[p] = plan = next(each)
                _state.ready(self.state[p], p, plan, due.group["master_weights"], where)
                if differentiable:
                    _state.apart(self.state[p])
        engine = engine_of(self._engine, differentiable)
        return Turn(dues, here, plans, self.state, on_device, engine.prepare, self._rule, self.agreement())

    def _remember(self, key: bytes, turn: Turn) -> None:
        """Keep the turn for the next time, and only so many of them."""
        if capturing() and turn not in self._captured:
            self._captured.append(turn)
        self._turns.pop(key, None)
        self._turns[key] = turn
        if len(self._turns) > MOST_TURNS + self.num_parameters:
            del self._turns[next(iter(self._turns))]

    # ---- what people ask

    @property
    def skipped(self) -> int | Tensor:
        """How many steps were left out; on the device, if it is known only there."""
        return self._skipped.clone() if isinstance(self._skipped, Tensor) else self._skipped

    def get_lr(self) -> Any:
        """The learning rate, or a list of one for each group where they differ."""
        rates = [group["lr"] for group in self.param_groups]
        return rates[0] if all(rate is rates[0] or rate == rates[0] for rate in rates) else rates

    def set_lr(self, lr: float | Tensor, *, proportional: bool = False) -> None:
        """Set the learning rate of every group to this one.

        With `proportional` it is the first group's, and the others keep their proportions to it.
        """
        if any("initial_lr" in group for group in self.param_groups):
            raise ContradictionError(
                f"`lr` follows a scheduler, which would overwrite {lr!r} at its next step. Change the scheduler, "
                "or drop it and make the optimizer anew."
            )
        for group in self.param_groups:
            self._groups.check({**group, "lr": lr})
        rates = proportional_rates(self.param_groups, lr) if proportional else [lr] * len(self.param_groups)
        for group, rate in zip(self.param_groups, rates, strict=True):
            self._groups.check({**group, "lr": rate})
        for group, rate in zip(self.param_groups, rates, strict=True):
            if group["capturable"] and isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate.reshape(()) if isinstance(rate, Tensor) else rate)  # a captured step sees it
            else:
                group["lr"] = rate

    def parameters(self) -> list[Tensor]:
        """All parameters, group by group."""
        return [p for p, _ in self._members()]

    def clear_state(self, which: str | Tensor | None = None) -> None:
        """Forget the state of one parameter, given itself or by name, or of all: they begin again when next stepped."""
        found = [p for p, name in self._members() if which is None or p is which or name == which]
        if which is not None and not any(p in self.state for p in found):
            shown = which if isinstance(which, str) else type(which).__name__
            names = ", ".join(repr(name) for p, name in self._members()[:5] if p in self.state)
            raise ParameterError(f"no state is kept for {shown!r}. Known are: {names or 'none'}.")
        for p in found:
            self.state.pop(p, None)
        self._forget_plans()

    @property
    def num_parameters(self) -> int:
        """How many parameters there are, counted as tensors."""
        return sum(len(group["params"]) for group in self.param_groups)

    def stats(self) -> dict[str, dict[str, Any]]:
        """What the last step of each parameter measured, by name: numbers, or with blocks an array of one a block.

        `weight_norm`, `update_norm`, both also as `_rms`, and `trust_ratio`. Reading them waits for the device;
        taking the step did not.
        """
        return {name: measured for _, name, measured in self.measured()}

    def measured(self) -> Iterator[tuple[Tensor, str, dict[str, Any]]]:
        """The same with each parameter, before its name."""
        latest = {p: (name, x) for turn in self._turns.values() for p, name, x in turn.stats()}
        found: list[str] = []
        for p, (name, measured) in latest.items():
            # Two models' parameters may have the same name.
            copies = sum(other == name or other.startswith(f"{name} (") for other in found)
            found.append(f"{name} ({copies + 1})" if copies else name)
            yield p, found[-1], measured

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a checkpoint, or raise StateError and stay as it was.

        State keeps the dtype it was saved with. Rates that schedulers move (lr, weight_decay, betas, momentum) come
        from the checkpoint; every other option stays as it was given here, and a warning names those that differ.
        """
        _loading.load(self, super().load_state_dict, state_dict)
        self._forget_plans()


def _with_gradients(params: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    grads = [p.grad for p in params]
    found = [g for g in grads if g is not None]
    return (list(params) if len(found) == len(grads) else [p for p in params if p.grad is not None]), found
