"""The base of all optimizers in the PyTorch API."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from struct import pack
from typing import Any, cast

import torch
from torch import Tensor

from layerwise import checks
from layerwise.blocks import as_blocks
from layerwise.core.turn import MOST_TURNS
from layerwise.engines import Changed
from layerwise.engines.compiled import signals_wait
from layerwise.engines.distributor import prepare
from layerwise.errors import ContradictionError, HyperparameterError, ParameterError, sentence
from layerwise.hyper import Hyper, in_words
from layerwise.names import ByName, check_matched
from layerwise.presets import Like
from layerwise.threads import OneAtATime
from layerwise.torch._by_parameter import ByParameter
from layerwise.torch._names import Names
from layerwise.torch.checkpoints import _loading
from layerwise.torch.sharding import _cuts as cuts
from layerwise.torch.sharding import _replaced
from layerwise.torch.sharding._agreement import Agreement, Skipped, of_gradient
from layerwise.torch.sharding._flat import check_asker
from layerwise.torch.sharding._model_group import as_model_group
from layerwise.torch.sharding._peers import Skips
from layerwise.torch.step import _bytes, _schedule, _state, _tensors
from layerwise.torch.step._engines import check_device, engine_name, engines_of
from layerwise.torch.step._given import check_group, check_params, warn_of_odd
from layerwise.torch.step._kinds import Kind, Kinds
from layerwise.torch.step._memory import check_apart, readable
from layerwise.torch.step._plan import Plan, check_step, plan_of
from layerwise.torch.step._settings import (
    NOT_OF_A_GROUP,
    Current,
    Groups,
    capturing,
    check_capture,
    in_lines,
    said_by_groups,
    without_unsaid,
)
from layerwise.torch.step._turn import Due, Local, Turn, grads_of, params_of, with_gradients, with_grads


class Optimizer(ByParameter, Like):
    """A `torch.optim.Optimizer` that carries out the rules of its groups: one for all of them, unless they name one."""

    _rule: Any
    _hyper: type[Hyper]

    def __init__(self, params: Any, given: Mapping[str, Any]) -> None:
        # No docstring, which the classes would inherit in place of theirs: `given` has every argument by name.
        check_params(params)
        params = params if isinstance(params, Tensor) else list(params)
        given = {**given, **said_by_groups(params, given)}
        self._groups = Groups(self._kinds(given), given["differentiable"])
        self._by_name = ByName("blocks", given["blocks"], None, as_blocks)
        self._skip_nonfinite = checks.FLAG("skip_nonfinite", given["skip_nonfinite"], "Pass True or False.")
        self._engine = engine_name(given["fused"], given["reproducible"], given["differentiable"])
        self._model_group = as_model_group(given["model_group"])
        self._of_all = {name: given[name] for name in NOT_OF_A_GROUP if name != "model_group"}
        self._forget_plans()
        self._captured: list[Turn] = []  # what CUDA graphs replay
        self._forget_agreement()
        self._when_zeroed: list[Callable[[], None]] = []
        self._one_at_a_time = OneAtATime()
        self._names = Names()
        self._begun_elsewhere = False
        self._resolves = False  # whether the memory of a gradient of the last step did not hold its numbers
        self._skipped: int | Tensor = 0
        self._groups.check_given()
        super().__init__(params, dict(self._groups.kinds.defaults))
        if self._model_group is None:  # else what a pattern means may be elsewhere
            check_matched("blocks", self._by_name.patterns, self._names_of_tensors())

    def _kinds(self, given: Mapping[str, Any]) -> Kinds:
        """Return the rules that groups may have: the one of this class."""
        return Kinds(Kind(self._rule, self._hyper, given))

    # What torch's own __getstate__ leaves out is what is ours.
    def __getstate__(self) -> dict[str, Any]:
        own = {key: self.__dict__[key] for key in ("_by_name", "_skip_nonfinite", "_engine", "_groups", "_skipped")}
        own |= {key: self.__dict__[key] for key in ("_of_all", "_model_group", "_begun_elsewhere")}
        self._put_names_in_step()
        return {**super().__getstate__(), **own, **self._places_of_flats()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget_plans()
        # torch comes here with every checkpoint, which changes nothing about these.
        if "_agreed" not in self.__dict__:
            self._captured = []
            self._forget_agreement()
        self.__dict__.setdefault("_when_zeroed", [])
        self.__dict__.setdefault("_one_at_a_time", OneAtATime())
        self.__dict__.setdefault("_names", Names())
        self._resolves = False
        self._axes = None
        self._forget_flats()
        for group in self.param_groups:
            group.update(self._groups.filled({**self.defaults, **group}))
            self._groups.complete(group)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether a GradScaler leaves unscaling and skipping to the step, as it does for PyTorch's fused optimizers.

        Trainers that clip by themselves refuse such optimizers. So it does where that is asked for, and where it could
        not do it itself: in a CUDA graph, with float16 gradients, and where processes have to skip together.
        """
        asked = self._of_all["fused"] is True or self._skip_nonfinite
        captured = any(group["capturable"] for group in self.param_groups)
        shared = self._model_group is not None
        # Read by trainers at any time: it asks no other process, and leaves errors to the step.
        return asked or captured or shared or any(p.dtype is torch.float16 or cuts.is_cut(p) for p in self.parameters())

    # ---- groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own; other options are those of the optimizer.

        Args:
            param_group: A mapping with `params` and any options of a group.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        check_group(param_group)
        param_group = self._groups.given(param_group)
        # A copy, because torch fills a group with defaults, which are not the caller's to see. What the optimizer was
        # given itself may be repeated: wrappers such as ZeroRedundancyOptimizer say everything in every group, and copy
        # it from ours into what they save, where a process group could not be.
        group = {key: x for key, x in without_unsaid(param_group).items() if not self._repeats(key, x, param_group)}
        self._groups.check_keys(group)
        given = [key for key in param_group.keys() - group.keys() if param_group[key] is not None]
        group = self._groups.filled({**self.defaults, **group})
        self._groups.check(group)
        self._groups.complete(group)
        super().add_param_group({**group, **dict.fromkeys(given)})
        self._added.update(dict.fromkeys(self.param_groups[-1]["params"]))
        self._axes = None
        try:
            self._check_members(self.param_groups[-1], len(self.param_groups) - 1)
            self._groups.see(self.param_groups[-1])
            warn_of_odd(self.param_groups, group["params"])
        except Exception:
            self.param_groups.pop()
            raise

    def __repr__(self) -> str:
        return in_lines(type(self).__name__, self.param_groups, self._groups)

    def _check_members(self, group: Mapping[str, Any], number: int) -> None:
        self._groups.check_rates_for(group)
        for p, name in self._named(number):
            _tensors.check_parameter(name, p)
            cuts.cut_of(name, p)
            self._groups.check_fits(group, _tensors.computing(p.dtype))
            check_device(self._engine, name, p.device.type)
        if isinstance(self._by_name.given, Mapping) and "param_names" not in group:
            raise HyperparameterError(
                sentence("blocks", "None for parameters without names", self._by_name.given, "Pass named_parameters().")
            )

    # ---- the step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step every parameter that has a gradient.

        Args:
            closure: A function that evaluates the model again and returns the loss, which `step` then returns.
        """
        loss = self._loss_of(closure)
        dues = self._due()
        self._check_model(sum(len(due.params) for due in dues))
        self._step_due(dues, self._agreement())
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients.

        Args:
            set_to_none: Set them to None; otherwise fill them with zeros.
        """
        super().zero_grad(set_to_none)
        for forget in self._when_zeroed:
            forget()

    def _settings_of(self, group: Mapping[str, Any]) -> Hyper:
        """Return the group's hyperparameters, or raise if one of its options is wrong."""
        return self._current(group).h

    def _current(self, group: Mapping[str, Any]) -> Current:
        self._groups.forget(len(self.param_groups))
        found = self._groups.current(group)
        if capturing():
            check_capture(group, _schedule.moves(self, group))
        per_tensor = group.get("max_grad_norm_per_tensor")
        if self._model_group is not None and found.asks_of_model and per_tensor:
            raise ContradictionError(
                sentence(
                    "max_grad_norm_per_tensor",
                    "None with max_grad_norm and a model_group",
                    per_tensor,
                    "Drop one of them: the norm of all could not be had in the first round.",
                )
            )
        return found

    def _due(self) -> list[Due]:
        groups = self.param_groups
        settings = [self._current(group) for group in groups]
        counts = any(one.asks_of_model for one in settings)
        each = zip(groups, settings, [with_gradients(group["params"]) for group in groups], strict=True)
        return [self._due_of(i, *one, counts) for i, one in enumerate(each) if one[2][0]]

    def _due_of(
        self,
        number: int,
        group: dict[str, Any],
        now: Current,
        given: tuple[list[Tensor], list[Tensor]],
        counts: bool = False,
    ) -> Due:
        h = self._groups.counted(now.h) if counts else now.h
        return Due(number, group, now.rule, h, now.want, *given)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # its tracer loses count of rules that wait
    def _step_due(self, dues: Sequence[Due], agreement: Agreement | None) -> None:
        """Step these parameters together: all, or none if one of them cannot be stepped here or on another rank."""
        if not dues and agreement is None:
            return
        with self._one_at_a_time, signals_wait, torch.set_grad_enabled(self._groups.differentiable):
            # Once, because it may take collectives: only this process knows whether its step is prepared again.
            dues, here = self._resolved(dues, self._read(dues, agreement))
            params, grads = params_of(dues), grads_of(dues)
            key = pack(f"{1 + len(params)}N", id(agreement), *map(id, params))  # bytes, which remember their hash
            turn, plans = self._kept_turn(key, dues, grads)
            if turn is None:
                dues, here = self._resolved(dues, here, always=True)
                plans = list(self._planned(dues))
                if not self._are_members(params):  # the caller has changed a group's list
                    self._step_due(dues, self._renewed(agreement))
                    return
            skip = self._to_skip(params, here[1])
            skips = None
            if agreement is not None:
                # What the others say decides as well: they are waited for, or the device is.
                skips = self._skips(agreement, dues, here[1], skip)
                skip = skips.now if isinstance(skips.now, Tensor) else None
            elif isinstance(skip, bool):
                self._skipped += 1
                return
            new = [p for p in params if turn is None and p not in self.state]
            if turn is None or turn.on_device != (skip is not None):
                turn = self._prepare(dues, here, plans, skip is not None, agreement)
            try:
                turn = self._stepped(turn, dues, here, skip, skips)
            except Exception as answer:
                for p in new:  # a step that is not taken leaves no trace
                    del self.state[p]
                if not isinstance(answer, Skipped):
                    raise
                self._skipped += 1
                return
            self._remember(key, turn)
            self._count_skipped(skip)
            self._look_at_first(turn, dues, skip)

    def _read(self, dues: Sequence[Due], agreement: Agreement | None) -> Local:
        """Return the local parts of parameters and gradients."""
        params, grads = params_of(dues), grads_of(dues)
        if not self._wrapped:
            return params, grads
        return cuts.local_parts(params, grads, partial(self._agree_to_redistribute, agreement, dues))

    def _agree_to_redistribute(
        self, agreement: Agreement | None, dues: Sequence[Due], elsewhere: Sequence[int]
    ) -> None:
        """Make sure that all processes will redistribute these gradients; a graph records only what they agreed on."""
        if agreement is None or capturing():
            return
        names, grads = self._names_of(dues), grads_of(dues)
        words = {of_gradient(name): "there" for name in names}
        words |= {of_gradient(names[i]): f"there, placed {cast('Any', grads[i]).placements}" for i in elsewhere}
        agreement.agree_on(words)

    def _resolved(self, dues: Sequence[Due], here: Local, always: bool = False) -> tuple[Sequence[Due], Local]:
        """Return the same with copies of gradients whose memory does not hold their numbers.

        That is done on request, and whenever no engine does so: before computing with gradients, or if some were
        replaced in the last step.
        """
        if not (always or self._resolves or self._might_skip()):
            return dues, here
        found = readable(here[1], partial(self._names_of, dues))
        replaced = found is not here[1]
        self._resolves = replaced or (always and self._resolves)
        if replaced and not self._wrapped:
            dues = with_grads(dues, found)
        return dues, (here[0], found)

    def _names_of(self, dues: Sequence[Due]) -> list[str]:
        return [names[p] for due in dues for names in [dict(self._named(due.number))] for p in due.params]

    def _stepped(self, turn: Turn, dues: Sequence[Due], here: Local, skip: Tensor | None, skips: Skips | None) -> Turn:
        """Take the step, with another turn if an engine finds that this one no longer holds."""
        given = skip, getattr(self, "grad_scale", None), skips
        try:
            turn.step(dues, here[1], *given)
        except Changed:
            dues, here = self._resolved(dues, here, always=True)
            if not turn.follows(grads_of(dues), self.state):
                plans = list(self._planned(dues))  # with errors for what is wrong
                turn = self._prepare(dues, here, plans, skip is not None, turn.agreement)
            turn.step(dues, here[1], *given)
        return turn

    def _kept_turn(self, key: bytes, dues: Sequence[Due], grads: list[Tensor]) -> tuple[Turn | None, Sequence[Plan]]:
        """Return the turn that these parameters had before, and its plans, if nothing has changed."""
        turn = None if self._groups.differentiable else self._turns.get(key)
        if turn is None:
            return None, ()
        same = turn.has_settings(dues)
        at_once = same and not self._might_skip()  # else the gradients are computed with before the engine looks
        holds = turn.holds(grads, self.state, at_once) or turn.follows(grads, self.state)
        return (turn, turn.plans) if holds and (same or turn.takes(dues)) else (None, ())

    def _planned(self, dues: Sequence[Due]) -> Iterator[Plan]:
        """Yield the plan of each parameter, if all of them can be stepped."""
        for due in dues:
            names = dict(self._named(due.number))
            for p, g in zip(due.params, due.grads, strict=True):
                yield self._checked(p, g, due, names[p])
        check_apart(self._names_of(dues), params_of(dues), self.state)

    def _checked(self, p: Tensor, g: Any, due: Due, name: str) -> Plan:
        check_step(name, p, g, due.group["differentiable"])
        _replaced.check_own(name, p, self._added)
        plan = self._plans.get(p)
        if plan is not None and plan.shape != p.shape:
            raise ParameterError(
                f"{name} had the shape {tuple(plan.shape)}, now {tuple(p.shape)}. Make a new optimizer."
            )
        if plan is None or (plan.name, plan.h, plan.dtype, plan.lies) != (name, due.h, p.dtype, cuts.cut_of(name, p)):
            plan = self._plan_for(p, due.group, due.h, name)
        _state.check_kept(plan, p, self.state.get(p, {}))
        return plan

    def _plan_for(self, p: Tensor, group: Mapping[str, Any], h: Hyper, name: str) -> Plan:
        """Return the plan of a parameter's step in a group with these settings."""
        return plan_of(self._groups.rule_of(group), p, h, name, self._by_name)

    def _prepare(
        self, dues: Sequence[Due], here: Local, plans: Sequence[Plan], on_device: bool, agreement: Agreement | None
    ) -> Turn:
        self._warn_of_layouts(dues, plans)
        differentiable = self._groups.differentiable
        each = iter(plans)
        for due in dues:
            # Counts that once had to be on the device stay there, and those beside them go there as well.
            where = on_device or due.group["capturable"] or _state.counted_elsewhere(self.state, due.params)
            for p in due.params:
                self._plans[p] = plan = next(each)
                if p not in self.state and p.device.type == "cpu":  # elsewhere a step would have to wait for it
                    self._first[p] = None
                _state.ready(self.state[p], p, plan, due.want, where)
                if differentiable:
                    _state.apart(self.state[p])
        prepared_by = partial(prepare, engines_of(self._engine, differentiable))
        return Turn(dues, here, plans, self.state, on_device, prepared_by, agreement)

    def _remember(self, key: bytes, turn: Turn) -> None:
        """Keep the turn for the next time, within the limit."""
        if capturing() and turn not in self._captured:
            self._captured.append(turn)
        self._turns.pop(key, None)
        self._turns[key] = turn
        if len(self._turns) > MOST_TURNS + self.num_parameters:
            del self._turns[next(iter(self._turns))]

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the state and the groups in torch.optim's form; of a function among the options only its name.

        State stored in integers is saved as bytes, along one more dimension.
        """
        check_asker(self.parameters())
        saved = super().state_dict()
        saved["state"] = {key: _bytes.saved(one) for key, one in saved["state"].items()}
        for group in saved["param_groups"]:
            group.update({key: in_words(value) for key, value in group.items() if callable(value)})
        return saved

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a checkpoint, or raise StateError and change nothing.

        Parameters are matched by name if both sides have names, and otherwise by their places. State keeps the dtype in
        which it was saved, unless `state_dtype` asks for another. Rates that schedulers move (lr, weight_decay, betas,
        momentum) come from the checkpoint; every other option stays as it was given here, and a warning names those
        that differ.

        Args:
            state_dict: The result of `state_dict()`.
        """
        begun_here = any(_schedule.moves(self, group) for group in self.param_groups)
        _loading.load(self, super().load_state_dict, state_dict)
        self._begun_elsewhere = not begun_here and any("initial_lr" in group for group in self.param_groups)
        self._forget_plans()
