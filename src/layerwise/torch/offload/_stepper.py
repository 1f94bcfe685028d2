"""Steps on the host of parameters on a device, part by part, and sums that are measured before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor

from layerwise.engines.compiled import signals_wait
from layerwise.errors import LayerwiseError
from layerwise.options.settings import Hyper
from layerwise.options.values import Scalar
from layerwise.torch.groups._members import Group
from layerwise.torch.groups._rules import check_offloaded, host_value
from layerwise.torch.offload._host import Host, SentPart
from layerwise.torch.sharding._agreement import Agreement
from layerwise.torch.step._measured_step import add_up, at_once
from layerwise.torch.step._plan import forget_state, has_state
from layerwise.torch.step._stepper import Stepper
from layerwise.torch.step._work import Work


class OffloadedStepper(Stepper):
    """The steps of an optimizer whose parameters are stepped in the host's memory, wherever they are."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.host = Host()
        self.elsewhere = self.host.gradient_of
        self.when_zeroed.append(self.host.forget_early)

    def forget(self) -> None:
        super().forget()
        self.host.forget()

    def in_place_of(self, p: Tensor) -> Tensor:
        return self.host.in_place_of(p)

    def take_over(self, p: Tensor) -> None:
        self.host.send_back([p])
        self.host.returned([p])

    def work_of(self, asked: Sequence[Sequence[Tensor]], numbers: tuple[int, ...] | None = None) -> Work:
        work, groups = super().work_of(asked, numbers), self.optimizer.param_groups
        for group in groups if numbers is None else [groups[i] for i in numbers]:
            check_offloaded(group)
        lr, weight_decay = ([*map(host_value, rates)] for rates in work.rates)
        return work._replace(rates=(lr, weight_decay))

    def _check_here(self, group: Group, h: Hyper) -> None:
        check_offloaded(group)
        super()._check_here(group, h)

    @property
    def scale(self) -> Scalar:
        return host_value(super().scale)

    def take_step(self, work: Work, might_skip: bool, agreement: Agreement | None) -> None:
        """Step parameters of a device in the host's memory."""
        host, states = self.host, self.optimizer.state
        host.count_anew(work.params)
        work = host.stepped(work)
        together = agreement is not None or any(h.needs_model_sum for h in work.hs)
        if not host.knows(work, together, states):
            work = self.planner.planned(work).work  # everything is checked before anything is stepped
            if not self.ranks.are_known(work.params):
                self.step_due(work.as_asked(), self.ranks.renewed(agreement))
                return
            host.plan(work, together)
        skip = self.to_skip(work) if might_skip and agreement is None else None
        if skip is not None and bool(skip):
            self.skipped += 1
            return
        try:
            for part in self._together(work, agreement) if together else host.parts(work):
                self.step_work(part, might_skip and agreement is not None, agreement)
                host.send_back(part.params)
                part.leave()
            host.keep(work, states)
        finally:
            host.returned(work.params)

    def _together(self, work: Work, agreement: Agreement | None) -> Iterable[Work]:
        """Return the parts of a step, with the sum over the model; or all as one part, if an engine has to add it up,
        or other processes have a share.
        """
        states, parts = self.optimizer.state, list[Work]()
        new = [p for p in work.params if not has_state(states.get(p))]
        try:
            for part in self.host.parts(work):
                parts.append(part if agreement is not None else self._measured(part))
            ahead = [part.ahead for part in parts if part.ahead is not None]
            if len(ahead) == len(parts):
                add_up(ahead)
                new = []
                return parts
        finally:
            for p in new:  # as long as nothing is to be stepped
                forget_state(states, p)
        for part in parts:
            part.leave()
        return [work._replace(grads_here=[g for part in parts for g in part.grads_here])]

    def _measured(self, part: Work) -> Work:
        """Return a part that is measured, if its engine does that."""
        key = self.key_of(part)
        step = self.unchanged(key, part, at_once=True)
        if step is None:
            planned = self.planner.planned(part)
            part, step = planned.work, self.planner.prepare(planned, False, None)
        if step is not self.steps.get(key):
            self.remember(key, step, None)
        return part._replace(ahead=step.ahead(part, self.scale, at_once))

    def arrived(self, p: Tensor) -> None:
        """See to a gradient that is complete in the backward pass: it leaves, and its part is measured if it is all."""
        with self.one_at_a_time, signals_wait:
            found = self.host.arrived(p)
            if found is not None:
                with suppress(LayerwiseError):  # of settings that the step will refuse
                    self._measure(found)

    def _measure(self, part: SentPart) -> None:
        """Begin to measure with the numbers of the next step as they are now."""
        some = frozenset(part.params)
        work = self.work_of([[p for p in group["params"] if id(p) in some] for group in self.members.groups])
        if list(map(id, work.params)) == part.params:
            work = self.host.stepped(work)._replace(grads_here=part.grads)
            step = self.unchanged(self.key_of(work), work, at_once=True)
            if step is not None:
                part.slot.ahead = step.ahead(work, self.scale, part.slot.waiting())
