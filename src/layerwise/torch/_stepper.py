"""The life of an optimizer's steps: what is due, how it is planned and prepared, agreed on, taken, and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from struct import pack
from typing import Any

import torch
from torch import Tensor

from layerwise.core.turn import keep
from layerwise.engines import Changed, just_prepared
from layerwise.engines.compiled import signals_wait
from layerwise.errors import ContradictionError, LayerwiseError, sentence
from layerwise.hyper import Hyper
from layerwise.threads import OneAtATime
from layerwise.torch._members import Members, apart
from layerwise.torch._planner import Planner, Setup
from layerwise.torch._ranks import Ranks
from layerwise.torch.offload._host import Arrived, Host
from layerwise.torch.sharding import _cuts as cuts
from layerwise.torch.sharding._agreement import Agreement, Skipped, of_gradient
from layerwise.torch.sharding._flat import stretched
from layerwise.torch.sharding._kept_group import KeptGroup
from layerwise.torch.sharding._peers import Skips
from layerwise.torch.step import _schedule, _state, _tensors
from layerwise.torch.step._ahead import add_up, at_once
from layerwise.torch.step._capture import check_capture, check_offloaded
from layerwise.torch.step._due import Settings, Work, at_hand, capturing, scalar
from layerwise.torch.step._plan import Plan
from layerwise.torch.step._turn import Turn


class Stepper:
    """The steps of one optimizer. A copy of the optimizer keeps only `skipped`, and finds out the rest again."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        setup: Setup,
        groups: Mapping[str, KeptGroup | None],
        skipped: int | Tensor = 0,
    ) -> None:
        self.setup, self.groups, self.members = setup, setup.groups, Members(optimizer)
        self.optimizer = self.members.optimizer
        """The optimizer whose steps these are, by a reference that does not keep it."""
        self.one_at_a_time = OneAtATime()
        self.turns: dict[bytes, Turn] = {}
        """The prepared steps by their parameters, the last taken at the end."""
        self.planner = Planner(setup, self.members)
        follow = partial(_follow_ranks, self.turns, self.planner)
        self.ranks = Ranks(self.members, groups, setup.groups, self.one_at_a_time, follow)
        self.skipped = skipped
        """How many steps were skipped."""
        self.when_zeroed: list[Callable[[], None]] = []
        self._settings: dict[tuple[int, ...] | None, Settings] = {}  # of all groups, and of some by their numbers
        self._names: list[Sequence[str] | None] = []  # of all groups' parameters, as they were planned
        self._captured: list[Turn] = []  # what CUDA graphs replay
        self._idle = 0  # parameters without gradients in the last step
        self.host = Host() if setup.offload else None
        """The host's memory, if parameters are stepped there wherever they are."""
        if self.host is not None:
            self.when_zeroed.append(self.host.forget_early)

    def of(self, optimizer: Any, steps: bool = False) -> Stepper:
        """Return the life of an optimizer's steps that has this one among its attributes.

        A wrapper may be made of another's attributes. It then answers for the steps that the other takes, and has its
        own once it steps by itself, or the other is gone.
        """
        own = self.members.own()
        if own is optimizer or not (steps or own is None):
            return self
        optimizer._stepper = made = Stepper(optimizer, self.setup, self.ranks.groups, self.skipped)
        return made

    def forget(self) -> None:
        """Plan, check and look at everything again."""
        self.groups.forget()
        self._settings.clear()
        self.turns.clear()
        self.planner.forget()
        if self.host is not None:
            self.host.forget()

    def in_place_of(self, p: Tensor) -> Tensor:
        """Return what is stepped in a parameter's place, with its numbers of now."""
        return p if self.host is None else self.host.in_place_of(p)

    def take_over(self, p: Tensor) -> None:
        """Give a parameter the numbers that were written to what is stepped in its place."""
        if self.host is not None:
            self.host.send_back([p])
            self.host.returned([p])

    # ---- what is due

    def settings_of(self, group: Mapping[str, Any]) -> Hyper:
        """Return a group's hyperparameters, or raise if one of its options is wrong, here and now."""
        h = self.groups.check(group)
        self._check_here(group, h)
        return h

    def work_of(self, asked: Sequence[Sequence[Tensor]], numbers: tuple[int, ...] | None = None) -> Work:
        """Return what is due of these parameters of all groups, or of those of these numbers.

        Raise if one of their options is wrong, here and now.
        """
        groups, found = self.optimizer.param_groups, self._settings.get(numbers)
        if numbers is not None:
            groups = [groups[i] for i in numbers]
        if found is None or not found.same(groups):
            found = self.groups.current(groups, found, numbers)
            keep(self._settings, numbers, found, (self.members.groups,))
        if self.setup.offload or self.ranks.model_group is not None or capturing():
            for group, now in zip(groups, found.each, strict=True):
                self._check_here(group, now.h)
        if self.host is None:
            return Work.of(found, groups, asked)
        work = Work.of(found, groups, asked, elsewhere=self.host.gradient_of)
        lr, weight_decay = ([*map(at_hand, rates)] for rates in work.rates)
        return work._replace(rates=(lr, weight_decay))

    def _follow_names(self) -> None:
        """Plan again if a parameter has another name, by which its blocks, random bits and measurements go."""
        names = [group.get("param_names") for group in self.members.groups]
        if names != self._names:
            self._names = list(map(copy, names))
            self.turns.clear()

    def _check_here(self, group: Mapping[str, Any], h: Hyper) -> None:
        if self.setup.offload:
            check_offloaded(group)
        if capturing():
            check_capture(group, _schedule.moves(self.members.own(), group), self.ranks.now is not None)
        per_tensor = group.get("max_grad_norm_per_tensor")
        if h.asks_of_model and per_tensor and self.ranks.model_group is not None:
            raise ContradictionError(
                sentence(
                    "max_grad_norm_per_tensor",
                    "None with max_grad_norm and a model_group",
                    per_tensor,
                    "Drop one of them: the norm of all could not be had in the first round.",
                )
            )

    def step(self) -> None:
        """Step every parameter that has a gradient."""
        asked = [group["params"] for group in self.optimizer.param_groups]
        work = self.work_of(asked)
        idle = sum(map(len, asked)) - len(work.params)
        if idle != self._idle or not work.params:
            self._idle = idle
            self.ranks.check_model()
        self.step_due(work, self.ranks.agreement())

    # ---- a step

    @torch._disable_dynamo  # type: ignore[attr-defined]  # loses count of rules that wait; imports itself when called
    def step_due(self, work: Work, agreement: Agreement | None) -> None:
        """Step these parameters together: all, or none if one of them cannot be stepped here or on another rank."""
        if not work.params and agreement is None:
            return
        with self.one_at_a_time, signals_wait, torch.set_grad_enabled(self.groups.differentiable):
            might_skip = self.might_skip
            self._follow_names()
            # Once, because both may take collectives: only this process knows whether its step is prepared again.
            if self.ranks.wrapped:
                work = self._local(work, agreement)
            if might_skip or self.planner.resolves:
                work = self.planner.readable(work)
            if self.host is None:
                self._step_work(work, might_skip, agreement)
            else:
                self._step_on_host(self.host, work, might_skip, agreement)

    def _step_work(self, work: Work, might_skip: bool, agreement: Agreement | None) -> None:
        """Step parameters that are where they are stepped, by the turn they had before or by a new one."""
        key = _key(work, agreement)
        turn = self._kept_turn(key, work, not might_skip)
        if turn is None:
            work, plans = self.planner.planned(work)
            if not self.ranks.are_known(work.params):  # the caller has changed a group's list
                self.step_due(work.as_asked(), self.ranks.renewed(agreement))
                return
        self._agreed_step(key, work, turn, plans if turn is None else turn.plans, might_skip, agreement)

    def _step_on_host(self, host: Host, work: Work, might_skip: bool, agreement: Agreement | None) -> None:
        """Step parameters of a device in the host's memory, part by part."""
        host.count_anew(work.params)
        work = host.stepped(work)
        together = agreement is not None or any(h.asks_of_model for h in work.hs)
        states = self.optimizer.state
        if not host.knows(work, together, states):
            work, _ = self.planner.planned(work)  # everything is checked before anything is stepped
            if not self.ranks.are_known(work.params):
                self.step_due(work.as_asked(), self.ranks.renewed(agreement))
                return
            host.plan(work, together)
        skip = self._to_skip(work) if might_skip and agreement is None else None
        if skip is not None and bool(skip):
            self.skipped += 1
            return
        try:
            for part in self._together(host, work, agreement) if together else host.parts(work):
                self._step_work(part, might_skip and agreement is not None, agreement)
                host.send_back(part.params)
                part.leave()
            host.keep(work, states)
        finally:
            host.returned(work.params)

    def _together(self, host: Host, work: Work, agreement: Agreement | None) -> list[Work]:
        """Return the parts of a step, with the sum over the model; or all as one part, if an engine has to add it up,
        or other processes have a share.
        """
        states, parts = self.optimizer.state, list[Work]()
        new = [p for p in work.params if not _state.is_begun(states.get(p))]
        try:
            for part in host.parts(work):
                parts.append(part if agreement is not None else self._measured(part))
            ahead = [part.ahead for part in parts if part.ahead is not None]
            if len(ahead) == len(parts):
                add_up(ahead)
                new = []
                return parts
        finally:
            for p in new:  # as long as nothing is to be stepped
                _state.forget(states, p)
        for part in parts:
            part.leave()
        return [work._replace(grads_here=[g for part in parts for g in part.grads_here])]

    def _measured(self, part: Work) -> Work:
        """Return a part that is measured, if its engine does that."""
        key = _key(part, None)
        turn = self._kept_turn(key, part, at_once=True)
        if turn is None:
            part, plans = self.planner.planned(part)
            turn = self.planner.prepare(part, plans, False, None)
            self._remember(key, turn, None)
        return part._replace(ahead=turn.ahead(part, self._scale, at_once))

    def arrived(self, p: Tensor) -> None:
        """See to a gradient that is complete in the backward pass: it leaves, and its part is measured if it is all."""
        host: Any = self.host
        with self.one_at_a_time, signals_wait:
            arrived = host.arrived(p)
            if arrived is not None:
                with suppress(LayerwiseError):  # of settings that the step will refuse
                    self._measure(host, arrived)

    def _measure(self, host: Host, part: Arrived) -> None:
        """Begin to measure with the numbers of the next step as they are now."""
        some = frozenset(part.params)
        work = self.work_of([[p for p in group["params"] if id(p) in some] for group in self.members.groups])
        if list(map(id, work.params)) == part.params:
            work = host.stepped(work)._replace(grads_here=part.grads)
            turn = self._kept_turn(_key(work, None), work, at_once=True)
            if turn is not None:
                part.slot.ahead = turn.ahead(work, self._scale, part.slot.waiting())

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
        if agreement is not None:  # what the others say decides as well
            scaler = getattr(self.optimizer, "found_inf", None) is not None
            skip, skips = None, Skips(bool(skip), self.setup.skip_nonfinite, scaler)
        elif isinstance(skip, bool):
            self.skipped += 1
            return
        states = self.optimizer.state
        new = [p for p in work.params if not _state.is_begun(states.get(p))] if turn is None else ()
        try:
            if turn is None or turn.on_device != (skip is not None):
                turn = self.planner.prepare(work, plans, skip is not None, agreement)
            turn = self._stepped(turn, work, skip, skips)
        except Exception as answer:
            for p in new:  # a step that is not taken leaves no trace
                _state.forget(states, p)
            if not isinstance(answer, Skipped):
                raise
            self.skipped += 1
            return
        self._remember(key, turn, skip)
        self.planner.warn_of_new()
        if self.planner.first and not (skip is not None and skip):
            self.planner.look_at_first(turn, work.dues)

    def _local(self, work: Work, agreement: Agreement | None) -> Work:
        """Return the same with the local parts of parameters and gradients."""
        agreed = partial(self._agree_to_redistribute, agreement, work)
        params_here, grads_here = cuts.local_parts(work.params, work.grads, agreed)
        return work._replace(params_here=params_here, grads_here=grads_here)

    def _agree_to_redistribute(self, agreement: Agreement | None, work: Work, elsewhere: Sequence[int]) -> None:
        """Make sure that all processes will redistribute these gradients."""
        if agreement is None:
            return
        names, grads = self.members.names_of(work.dues), work.grads
        words = {of_gradient(name): "there" for name in names}
        placed: dict[int, Any] = {i: grads[i] for i in elsewhere}
        words |= {of_gradient(names[i]): f"there, placed {g.placements}" for i, g in placed.items()}
        agreement.agree_on(words)

    def _kept_turn(self, key: bytes, work: Work, at_once: bool) -> Turn | None:
        """Return the turn that these parameters had before, if nothing has changed; `Turn.holds` says when."""
        turn = None if self.groups.differentiable else self.turns.get(key)
        if turn is None:
            return None
        same = turn.has_settings(work)
        holds = turn.holds(work, self.optimizer.state, same and at_once) and (same or turn.takes(work))
        return turn if holds else None

    def _stepped(self, turn: Turn, work: Work, skip: Tensor | None, skips: Skips | None) -> Turn:
        """Take the step, with another turn if an engine finds that this one no longer holds."""
        given = skip, self._scale, skips
        try:
            turn.step(work, *given)
        except Changed:
            work, plans = self.planner.planned(work)  # with errors for what is wrong
            turn = self.planner.prepare(work, plans, skip is not None, turn.agreement)
            with just_prepared():
                turn.step(work, *given)
        return turn

    @property
    def _scale(self) -> Any:
        scale = getattr(self.optimizer, "grad_scale", None)
        if scale is None:
            return 1.0
        return scalar(scale if self.host is None else at_hand(scale), self.groups.differentiable)

    # ---- skipping

    @property
    def might_skip(self) -> bool:
        """Whether a step may be left out because of what gradients are."""
        return self.setup.skip_nonfinite or getattr(self.optimizer, "found_inf", None) is not None

    def _to_skip(self, work: Work) -> Any:
        """Return True if this process skips the step; the gaps of a flat buffer do not count."""
        looked_at = list(stretched(work.params, work.grads_here))
        return _tensors.to_skip(looked_at, getattr(self.optimizer, "found_inf", None), self.setup.skip_nonfinite)

    # ---- afterwards

    def _remember(self, key: bytes, turn: Turn, skip: Tensor | None) -> None:
        """Keep the turn for the next time, within the limit, and count a skipped step that only the device knows of."""
        if skip is not None:
            # In place, so that a captured step counts on.
            self.skipped += skip.to(self.skipped.device) if isinstance(self.skipped, Tensor) else skip
        if capturing() and turn not in self._captured:
            self._captured.append(turn)
        if next(reversed(self.turns.values()), None) is not turn:
            keep(self.turns, key, turn, (self.members,))

    def steppers(self) -> dict[str, str]:
        """Return, by parameters' names, the engine that took the last step of each."""
        latest = {p: (plan.name, by) for turn in self.turns.values() for p, plan, by in turn.steppers()}
        found = dict[str, str]()
        for name, by in latest.values():
            found[apart(name, found)] = by
        return found

    def measured(self) -> Iterator[tuple[Tensor, str, dict[str, Any]]]:
        """Yield each parameter with the name and the measurements of its last step, tensor by tensor."""
        latest = {p: measured for turn in self.turns.values() for p, measured in turn.by_parameter()}
        found: list[str] = []
        for p, measured in latest.items():
            for name, one in measured:
                found.append(apart(name, found))
                yield p, found[-1], one


def _follow_ranks(turns: dict[bytes, Turn], planner: Planner, copies: tuple[cuts.Axis, ...]) -> None:
    """Prepare steps again, now that these processes have copies."""
    turns.clear()
    planner.copies = copies


def _key(work: Work, agreement: Agreement | None) -> bytes:
    return pack(f"{1 + len(work.params)}N", id(agreement), *map(id, work.params))  # bytes remember their hash
