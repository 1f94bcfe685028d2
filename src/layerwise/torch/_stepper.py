"""The life of an optimizer's steps: what is due, how it is planned and prepared, agreed on, taken, and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from struct import pack
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layerwise.core.turn import MOST_TURNS
from layerwise.engines import Changed
from layerwise.engines.compiled import signals_wait
from layerwise.engines.distributor import prepare
from layerwise.errors import ContradictionError, ParameterError, sentence, warn
from layerwise.first import warn_of
from layerwise.hyper import Hyper
from layerwise.names import ByName
from layerwise.threads import OneAtATime
from layerwise.torch._members import Members
from layerwise.torch._ranks import Ranks
from layerwise.torch.sharding import _cuts as cuts
from layerwise.torch.sharding._agreement import Agreement, Skipped, of_gradient
from layerwise.torch.sharding._flat import stretched
from layerwise.torch.sharding._model_group import ModelGroup
from layerwise.torch.sharding._peers import Skips
from layerwise.torch.step import _schedule, _state, _tensors
from layerwise.torch.step._engines import engines_of
from layerwise.torch.step._first import FINER, exempt, firsts
from layerwise.torch.step._memory import check_apart, readable
from layerwise.torch.step._plan import Plan, check_step, plan_of
from layerwise.torch.step._settings import Current, Groups, capturing, check_capture
from layerwise.torch.step._storage import storing
from layerwise.torch.step._turn import Due, Turn, Work, with_gradients


class Setup(NamedTuple):
    """What an optimizer was given once for all of its groups."""

    groups: Groups
    blocks: ByName
    skip_nonfinite: bool
    engine: str | None


class Stepper:
    """The steps of one optimizer. A copy of the optimizer keeps only `skipped`, and finds out the rest again."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        setup: Setup,
        model_group: ModelGroup | None,
        skipped: int | Tensor = 0,
    ) -> None:
        self.setup, self.groups, self.members = setup, setup.groups, Members(optimizer)
        self.optimizer = self.members.optimizer
        """The optimizer whose steps these are, by a reference that does not keep it."""
        self.one_at_a_time = OneAtATime()
        self.turns: dict[bytes, Turn] = {}
        """The prepared steps by their parameters, the last taken at the end."""
        given = model_group, setup.groups.differentiable, self.one_at_a_time, self.turns.clear
        self.ranks = Ranks(self.members, *given)
        self.skipped = skipped
        """How many steps were skipped."""
        self.when_zeroed: list[Callable[[], None]] = []
        self._captured: list[Turn] = []  # what CUDA graphs replay
        self._resolves = False  # whether the memory of a gradient of the last step did not hold its numbers
        self.forget()

    def moved_to(self, optimizer: Any) -> Stepper:
        """Return the same for another object that has taken over this optimizer's attributes."""
        optimizer._stepper = made = Stepper(optimizer, self.setup, self.ranks.model_group, self.skipped)
        return made

    def forget(self) -> None:
        """Plan, check and look at everything again."""
        self.groups.forget()
        self.turns.clear()
        self._plans: dict[Tensor, Plan] = {}
        self._warned: set[tuple[str, str]] = set()
        self._first: dict[Tensor, None] = {}  # parameters whose first step is still to be looked at

    # ---- what is due

    def settings_of(self, group: Mapping[str, Any]) -> Hyper:
        """Return the group's hyperparameters, or raise if one of its options is wrong."""
        return self.current(group).h

    def current(self, group: Mapping[str, Any]) -> Current:
        """Return the group's settings, or raise if one of its options is wrong, here and now."""
        found = self.groups.current(group)
        if capturing():
            check_capture(group, _schedule.moves(self.members.own(), group))
        per_tensor = group.get("max_grad_norm_per_tensor")
        if found.asks_of_model and per_tensor and self.ranks.model_group is not None:
            raise ContradictionError(
                sentence(
                    "max_grad_norm_per_tensor",
                    "None with max_grad_norm and a model_group",
                    per_tensor,
                    "Drop one of them: the norm of all could not be had in the first round.",
                )
            )
        return found

    def step(self) -> None:
        """Step every parameter that has a gradient."""
        groups = self.members.groups
        settings = [self.current(group) for group in groups]
        counts = any(now.asks_of_model for now in settings)
        dues, idle = [], 0
        for number, (group, now) in enumerate(zip(groups, settings, strict=True)):
            params, grads = with_gradients(group["params"])
            idle += len(group["params"]) - len(params)
            if params:
                dues.append(self.due_of(number, group, now, params, grads, counts))
        self.ranks.check_model(idle, len(dues))
        self.step_due(dues, self.ranks.agreement())

    def due_of(
        self,
        number: int,
        group: dict[str, Any],
        now: Current,
        params: list[Tensor],
        grads: list[Tensor],
        counts: bool = False,
    ) -> Due:
        """Return what is due of a group; its gradients may count in a norm that clips others."""
        h = self.groups.counted(now.h) if counts else now.h
        return Due(number, group, now.rule, h, now.want, now.rates, params, grads)

    # ---- a step

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # its tracer loses count of rules that wait
    def step_due(self, dues: Sequence[Due], agreement: Agreement | None) -> None:
        """Step these parameters together: all, or none if one of them cannot be stepped here or on another rank."""
        if not dues and agreement is None:
            return
        with self.one_at_a_time, signals_wait, torch.set_grad_enabled(self.groups.differentiable):
            might_skip = self.might_skip
            work = Work.of(dues)
            # Once, because both may take collectives: only this process knows whether its step is prepared again.
            if self.ranks.wrapped:
                work = self._local(work, agreement)
            if might_skip or self._resolves:
                work = self._readable(work)
            key = pack(f"{1 + len(work.params)}N", id(agreement), *map(id, work.params))  # bytes remember their hash
            turn = self._kept_turn(key, work, not might_skip)
            if turn is None:
                work, plans = self._planned(work)
                if not self.ranks.are_known(work.params):  # the caller has changed a group's list
                    self.step_due(dues, self.ranks.renewed(agreement))
                    return
            self._agreed_step(key, work, turn, plans if turn is None else turn.plans, might_skip, agreement)

    def _agreed_step(
        self,
        key: bytes,
        work: Work,
        turn: Turn | None,
        plans: Sequence[Plan],
        might_skip: bool,
        agreement: Agreement | None,
    ) -> None:
        """Take a step, or leave it out if this process or another has to."""
        skip, skips = self._to_skip(work) if might_skip else None, None
        if agreement is not None:
            # What the others say decides as well: they are waited for, or the device is.
            skips = self._skips(agreement, work, skip)
            skip = skips.now if isinstance(skips.now, Tensor) else None
        elif isinstance(skip, bool):
            self.skipped += 1
            return
        new = [p for p in work.params if p not in self.optimizer.state] if turn is None else ()
        try:
            if turn is None or turn.on_device != (skip is not None):
                turn = self._prepare(work, plans, skip is not None, agreement)
            turn = self._stepped(turn, work, skip, skips)
        except Exception as answer:
            for p in new:  # a step that is not taken leaves no trace
                self.optimizer.state.pop(p, None)
            if not isinstance(answer, Skipped):
                raise
            self.skipped += 1
            return
        self._remember(key, turn, skip)
        if self._first and not (skip is not None and skip):
            self._look_at_first(turn, work.dues)

    def _local(self, work: Work, agreement: Agreement | None) -> Work:
        """Return the same with the local parts of parameters and gradients."""
        agreed = partial(self._agree_to_redistribute, agreement, work)
        params_here, grads_here = cuts.local_parts(work.params, work.grads, agreed)
        return work._replace(params_here=params_here, grads_here=grads_here)

    def _agree_to_redistribute(self, agreement: Agreement | None, work: Work, elsewhere: Sequence[int]) -> None:
        """Make sure that all processes will redistribute these gradients; a graph records only what they agreed on."""
        if agreement is None or capturing():
            return
        names, grads = self._names_of(work.dues), work.grads
        words = {of_gradient(name): "there" for name in names}
        placed: dict[int, Any] = {i: grads[i] for i in elsewhere}
        words |= {of_gradient(names[i]): f"there, placed {g.placements}" for i, g in placed.items()}
        agreement.agree_on(words)

    def _readable(self, work: Work, always: bool = False) -> Work:
        """Return the same with copies of gradients whose memory does not hold their numbers.

        That is done before computing with gradients, and before they are checked; and from then on, for as long as some
        are replaced.
        """
        found = readable(work.grads_here, partial(self._names_of, work.dues))
        replaced = found is not work.grads_here
        self._resolves = replaced or (always and self._resolves)
        return work.with_grads(found) if replaced else work

    def _names_of(self, dues: Sequence[Due]) -> list[str]:
        return [names[p] for due in dues for names in [dict(self.members.named(due.number))] for p in due.params]

    def _kept_turn(self, key: bytes, work: Work, at_once: bool) -> Turn | None:
        """Return the turn that these parameters had before, if nothing has changed; `Turn.holds` says when."""
        turn = None if self.groups.differentiable else self.turns.get(key)
        if turn is None:
            return None
        same = turn.has_settings(work.dues)
        holds = turn.holds(work, self.optimizer.state, same and at_once) and (same or turn.takes(work.dues))
        return turn if holds else None

    def _stepped(self, turn: Turn, work: Work, skip: Tensor | None, skips: Skips | None) -> Turn:
        """Take the step, with another turn if an engine finds that this one no longer holds."""
        given = skip, getattr(self.optimizer, "grad_scale", None), skips
        try:
            turn.step(work, *given)
        except Changed:
            work, plans = self._planned(work)  # with errors for what is wrong
            turn = self._prepare(work, plans, skip is not None, turn.agreement)
            turn.step(work, *given)
        return turn

    # ---- planning and preparing

    def plan_for(self, p: Tensor, group: Mapping[str, Any], h: Hyper, name: str) -> Plan:
        """Return the plan of a parameter's step in a group with these settings."""
        return plan_of(self.groups.rule_of(group), p, h, name, self.setup.blocks)

    def _planned(self, work: Work) -> tuple[Work, list[Plan]]:
        """Return the plan of each parameter, if all of them can be stepped, with gradients that can be read."""
        work, plans = self._readable(work, always=True), list[Plan]()
        grads, names = iter(work.grads), self._names_of(work.dues)
        for due in work.dues:
            plans += [self._checked(p, next(grads), due, names[len(plans) + i]) for i, p in enumerate(due.params)]
        check_apart(names, work.params, self.optimizer.state)
        return work, plans

    def _checked(self, p: Tensor, g: Any, due: Due, name: str) -> Plan:
        check_step(name, p, g, due.group["differentiable"])
        self.ranks.check_own(name, p)
        plan = self._plans.get(p)
        if plan is not None and plan.shape != p.shape:
            raise ParameterError(
                f"{name} had the shape {tuple(plan.shape)}, now {tuple(p.shape)}. Make a new optimizer."
            )
        if plan is None or (plan.name, plan.h, plan.dtype, plan.lies) != (name, due.h, p.dtype, cuts.cut_of(name, p)):
            plan = self.plan_for(p, due.group, due.h, name)
        _state.check_kept(plan, p, self.optimizer.state.get(p, {}))
        return plan

    def _prepare(self, work: Work, plans: Sequence[Plan], on_device: bool, agreement: Agreement | None) -> Turn:
        self._warn_of_layouts(work, plans)
        states, differentiable, each = self.optimizer.state, self.groups.differentiable, iter(plans)
        for due in work.dues:
            # Counts that once had to be on the device stay there, and those beside them go there as well.
            where = on_device or due.group["capturable"] or _state.counted_elsewhere(states, due.params)
            for p in due.params:
                self._plans[p] = plan = next(each)
                if p not in states and p.device.type == "cpu":  # elsewhere a step would have to wait for it
                    self._first[p] = None
                _state.ready(states[p], p, plan, due.want, where)
                if differentiable:
                    _state.apart(states[p])
        prepared_by = partial(prepare, engines_of(self.setup.engine, differentiable))
        return Turn(work, plans, states, on_device, prepared_by, agreement)

    def _warn_of_layouts(self, work: Work, plans: Sequence[Plan]) -> None:
        """Warn once of each parameter whose layout does not allow the requested storage of its state."""
        wants = [due.want for due in work.dues for _ in due.params]
        found = {
            (plan.name, key): stored
            for p, plan, want in zip(work.params, plans, wants, strict=True)
            for key in want.state
            if plan.state_shapes[key] is not None and (stored := storing(plan, p, want).chosen(key)).by_layout
        }
        new = {which: stored for which, stored in found.items() if which not in self._warned}
        for (name, key), stored in new.items():
            warn(f"{key!r} of {name} is stored in {stored.dtype} and not in 8 bits: {stored.why}.")
        self._warned.update(new)

    # ---- skipping

    @property
    def might_skip(self) -> bool:
        """Whether a step may be left out because of what gradients are."""
        return self.setup.skip_nonfinite or getattr(self.optimizer, "found_inf", None) is not None

    def _to_skip(self, work: Work) -> Any:
        """Return True if this process skips the step; the gaps of a flat buffer do not count."""
        looked_at = list(stretched(work.params, work.grads_here))
        return _tensors.to_skip(looked_at, getattr(self.optimizer, "found_inf", None), self.setup.skip_nonfinite)

    def _skips(self, agreement: Agreement, work: Work, now: Any) -> Skips:
        """Return this process's report on skipping; for steps that may be captured, on the device."""
        devices = {g.device for g in work.grads_here}
        # Others than the optimizer's own agreement are not looked at in its next step.
        own = agreement is self.ranks.agreed and len(devices) == 1
        may_be_captured = own and all(due.group["capturable"] for due in work.dues)
        leave = agreement.to_leave(devices.pop(), now) if may_be_captured else None
        scaler = getattr(self.optimizer, "found_inf", None) is not None
        return Skips(bool(now) if leave is None else leave, self.setup.skip_nonfinite, scaler)

    # ---- afterwards

    def _remember(self, key: bytes, turn: Turn, skip: Tensor | None) -> None:
        """Keep the turn for the next time, within the limit, and count a skipped step that only the device knows of."""
        if skip is not None:
            # In place, so that a captured step counts on.
            self.skipped += skip.to(self.skipped.device) if isinstance(self.skipped, Tensor) else skip
        if turn not in self._captured and capturing():
            self._captured.append(turn)
        self.turns.pop(key, None)
        self.turns[key] = turn
        if len(self.turns) > MOST_TURNS and len(self.turns) > MOST_TURNS + len(self.members):
            del self.turns[next(iter(self.turns))]

    def _look_at_first(self, turn: Turn, dues: Sequence[Due]) -> None:
        """Say what the first steps of parameters show of those to come."""
        found = list(firsts(turn, dues, self._first, self.optimizer.state))
        done = set(turn.params)
        self._first = {p: None for p in self._first if p not in done}
        names = {name for group in self.members.groups for name in group.get("param_names", ())}
        warn_of(found, exempt(found, names), FINER)

    def measured(self) -> Iterator[tuple[Tensor, str, dict[str, Any]]]:
        """Yield each parameter with the name and the measurements of its last step, tensor by tensor."""
        latest = {p: measured for turn in self.turns.values() for p, measured in turn.stats()}
        found: list[str] = []
        for p, measured in latest.items():
            for name, one in measured:
                found.append(apart(name, found))
                yield p, found[-1], one


def apart(name: str, others: Sequence[str] | Mapping[str, Any]) -> str:
    """Return a name that is not among the others: two models' parameters may have the same name."""
    copies = sum(other == name or other.startswith(f"{name} (") for other in others)
    return f"{name} ({copies + 1})" if copies else name
