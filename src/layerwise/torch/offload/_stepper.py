"""Steps that the host takes of parameters on a device, part by part, and sums that it measures before."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from torch import Tensor

from layerwise.errors import LayerwiseError
from layerwise.torch.offload._host import Arrived, Host
from layerwise.torch.sharding._agreement import Agreement
from layerwise.torch.step import _state
from layerwise.torch.step._ahead import add_up, at_once
from layerwise.torch.step._work import Work

Stepper = Any  # of `torch/step/_stepper.py`, which calls these functions


def take(stepper: Stepper, host: Host, work: Work, might_skip: bool, agreement: Agreement | None) -> None:
    """Step parameters of a device in the host's memory."""
    host.count_anew(work.params)
    work = host.stepped(work)
    together = agreement is not None or any(h.asks_of_model for h in work.hs)
    states = stepper.optimizer.state
    if not host.knows(work, together, states):
        work, _ = stepper.planner.planned(work)  # everything is checked before anything is stepped
        if not stepper.ranks.are_known(work.params):
            stepper.step_due(work.as_asked(), stepper.ranks.renewed(agreement))
            return
        host.plan(work, together)
    skip = stepper.to_skip(work) if might_skip and agreement is None else None
    if skip is not None and bool(skip):
        stepper.skipped += 1
        return
    try:
        for part in _together(stepper, host, work, agreement) if together else host.parts(work):
            stepper.step_work(part, might_skip and agreement is not None, agreement)
            host.send_back(part.params)
            part.leave()
        host.keep(work, states)
    finally:
        host.returned(work.params)


def _together(stepper: Stepper, host: Host, work: Work, agreement: Agreement | None) -> Iterable[Work]:
    """Return the parts of a step, with the sum over the model; or all as one part, if an engine has to add it up, or
    other processes have a share.
    """
    states, parts = stepper.optimizer.state, list[Work]()
    new = [p for p in work.params if not _state.has_state(states.get(p))]
    try:
        for part in host.parts(work):
            parts.append(part if agreement is not None else _measured(stepper, part))
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


def _measured(stepper: Stepper, part: Work) -> Work:
    """Return a part that is measured, if its engine does that."""
    key = stepper.key_of(part)
    step = stepper.unchanged(key, part, at_once=True)
    if step is None:
        part, plans = stepper.planner.planned(part)
        step = stepper.planner.prepare(part, plans, False, None)
    if step is not stepper.steps.get(key):
        stepper.remember(key, step, None)
    return part._replace(ahead=step.own.ahead(step, part, stepper.scale, at_once))


def arrived(stepper: Stepper, p: Tensor) -> None:
    """See to a gradient that is complete in the backward pass: it leaves, and its part is measured if it is all."""
    host: Any = stepper.host
    found = host.arrived(p)
    if found is not None:
        with suppress(LayerwiseError):  # of settings that the step will refuse
            _measure(stepper, host, found)


def _measure(stepper: Stepper, host: Host, part: Arrived) -> None:
    """Begin to measure with the numbers of the next step as they are now."""
    some = frozenset(part.params)
    work = stepper.work_of([[p for p in group["params"] if id(p) in some] for group in stepper.members.groups])
    if list(map(id, work.params)) == part.params:
        work = host.stepped(work)._replace(grads_here=part.grads)
        step = stepper.unchanged(stepper.key_of(work), work, at_once=True)
        if step is not None:
            part.slot.ahead = step.own.ahead(step, work, stepper.scale, part.slot.waiting())
