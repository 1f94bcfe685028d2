"""Parameters that step together: checked, laid out and handed to an engine once, while they stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layerwise.core import turn
from layerwise.engines import Changed, Job
from layerwise.engines.places import Looks, objects_of
from layerwise.hyper import Hyper, in_words
from layerwise.rules.asks import Now
from layerwise.storage.options import Wanted
from layerwise.torch.sharding._agreement import Agreement, of_gradient
from layerwise.torch.sharding._cuts import local
from layerwise.torch.sharding._flat import missing_gradient
from layerwise.torch.sharding._peers import Peers, Skips
from layerwise.torch.step import _storage
from layerwise.torch.step._ahead import Ahead
from layerwise.torch.step._counts import Counts, OfGroup
from layerwise.torch.step._current import scalar
from layerwise.torch.step._plan import Plan
from layerwise.torch.step._storage import storing
from layerwise.torch.step._tensors import alike, written

States = Mapping[Tensor, Mapping[str, Any]]
Elsewhere = Callable[[Tensor], Tensor | None]


class Due(NamedTuple):
    """The parameters of one group that are to be stepped, their gradients, and the group's settings and rates."""

    number: int
    group: dict[str, Any]
    rule: Any
    h: Hyper
    want: Wanted
    rates: tuple[float | Tensor, float | Tensor]  # lr and weight decay
    params: list[Tensor]
    grads: list[Tensor]


class Work(NamedTuple):
    """What is due of all groups, what is stepped in place of the parameters, and the local parts of that and of
    gradients.
    """

    dues: Sequence[Due]
    params: list[Tensor]
    grads: list[Tensor]
    stepped: list[Tensor]
    params_here: list[Tensor]
    grads_here: list[Tensor]
    ahead: Ahead | None = None  # what was measured of it

    @classmethod
    def of(cls, dues: Sequence[Due]) -> Work:
        """Return the work where all is here."""
        if len(dues) == 1:
            params, grads = dues[0].params, dues[0].grads
        else:
            params, grads = [p for due in dues for p in due.params], [g for due in dues for g in due.grads]
        return cls(dues, params, grads, params, params, grads)

    def with_grads(self, found: list[Tensor]) -> Work:
        """Return the same with these in place of the local parts of the gradients."""
        return self._replace(grads=found if self.grads_here is self.grads else self.grads, grads_here=found)

    def leave(self) -> None:
        """Give up what was measured, unless it was used."""
        if self.ahead is not None:
            self.ahead.leave()

    def part(self, which: range, grads_here: list[Tensor]) -> Work:
        """Return the work of some parameters that follow one another, with their gradients in this form."""
        at, dues = 0, list[Due]()
        for due in self.dues:
            some = slice(max(0, which.start - at), max(0, which.stop - at))
            dues.append(due._replace(params=due.params[some], grads=due.grads[some]))
            at += len(due.params)
        some = slice(which.start, which.stop)
        here = self.params[some], self.grads[some], self.stepped[some], self.params_here[some]
        return Work([due for due in dues if due.params], *here, grads_here)


def with_gradients(params: Sequence[Tensor], elsewhere: Elsewhere | None = None) -> tuple[list[Tensor], list[Tensor]]:
    """Return the parameters that have gradients, and their gradients, which may be `elsewhere`."""
    grads = [p.grad for p in params]
    if elsewhere is not None:
        grads = [elsewhere(p) if g is None else g for p, g in zip(params, grads, strict=True)]
    found = [g for g in grads if g is not None]
    if len(found) == len(grads):
        return list(params), found
    grads = [missing_gradient(p) if g is None else g for p, g in zip(params, grads, strict=True)]
    return [p for p, g in zip(params, grads, strict=True) if g is not None], [g for g in grads if g is not None]


def _options(dues: Sequence[Due]) -> list[tuple[Any, ...]]:
    """Return the groups' settings that are part of the plan; the rates are not."""
    return [(due.h, len(due.params), due.group["capturable"], due.want) for due in dues]


def _differ_in_numbers(options: Sequence[tuple[Any, ...]], others: Sequence[tuple[Any, ...]]) -> bool:
    if len(options) != len(others):
        return False
    return all(
        rest == other_rest and type(h) is type(other) and h.form() == other.form()
        for (h, *rest), (other, *other_rest) in zip(options, others, strict=True)
    )


class Turn:
    """A prepared step of these parameters; other ranks may hold parts of them."""

    def __init__(
        self,
        work: Work,
        plans: Sequence[Plan],
        states: States,
        on_device: bool,
        prepare: turn.Prepare,
        agreement: Agreement | None = None,
    ) -> None:
        dues, here = work.dues, work.params_here
        self.params, self.plans, self.on_device = list(work.params), plans, on_device
        self.states = [states[p] for p in self.params]
        beside = zip(here, (_storage.named_state(state).master for state in self.states), strict=True)
        masters = [(x, local(master)) for x, master in beside if master is not None]
        self._masters = list(alike(*zip(*masters, strict=True)))
        remainders = _storage.Remainders(here, self.states)
        self._remainders = remainders if remainders.any else None
        self._wrappers = [p for p, x in zip(work.stepped, here, strict=True) if p is not x]
        self._options, self._objects = _options(dues), objects_of(self.params, states)
        wants = [due.want for due in dues for _ in due.params]
        each = zip(work.stepped, plans, self.states, wants, strict=True)
        jobs = [job for p, plan, state, want in each for job in storing(plan, p, want).jobs(state)]
        self._stored = [_storage.dtypes(p, state) for p, state in zip(here, self.states, strict=True)]
        self._turn = turn.Turn(plans, jobs, prepare)
        alone = self._turn.whole and agreement is None
        self._itself = alone and all(map(_is_itself, jobs, work.stepped, self.states))
        self._looks = Looks(self._arrays(work), work.grads_here)
        self._dtypes = [g.dtype for g in work.grads_here]
        held = [one for plan in plans for one in plan.held]
        self._counts = self._counts_of(dues, self._turn.prepared.counts and alone)
        self.agreement = agreement
        self._peers = None if agreement is None else Peers(agreement, held, self._described())

    def _counts_of(self, dues: Sequence[Due], by_engine: bool) -> Counts:
        steps = iter(state["step"] for state in self.states)
        each = [(list(islice(steps, len(due.params))), self.on_device or due.group["capturable"]) for due in dues]
        return Counts([OfGroup(own, on_device, by_engine) for own, on_device in each])

    def holds(self, work: Work, states: States, at_once: bool) -> bool:
        """Return True if no tensor has changed since this was prepared.

        If the step follows `at_once`, an engine that gets these very tensors looks at them itself, and may raise
        `Changed`. Others see views or local parts of them, which would not follow them elsewhere.
        """
        if not self._objects.same(self.params, states):
            return False
        if at_once and self._itself:
            return True
        same = self._looks.same(self._arrays(work), work.grads_here)
        return same and [g.dtype for g in work.grads_here] == self._dtypes

    def _arrays(self, work: Work) -> list[Tensor]:
        """Return the local parts of all parameters, and of their state without the counts."""
        kept = [local(x) for state in self.states for key, x in state.items() if key != "step"]
        return [*work.params_here, *kept]

    def has_settings(self, dues: Sequence[Due]) -> bool:
        """Return True if the groups' settings have not changed."""
        return _options(dues) == self._options

    def takes(self, dues: Sequence[Due]) -> bool:
        """Return True if the groups' settings differ only in numbers, which this then takes over."""
        options, again = _options(dues), self._turn.prepared.layouts is not None
        # With others, what is planned is part of what is agreed.
        if self._peers is not None or not again or not _differ_in_numbers(options, self._options):
            return False
        self._options, held = options, (one for plan in self.plans for one in plan.held)
        hs = [due.h for due in dues for _ in due.params]
        each = [(h, torch.finfo(plan.dtype).eps) for h, plan in zip(hs, self.plans, strict=True) for _ in plan.held]
        fitted = [h.fit(one.piece.shape, one.piece.block_dims, eps) for one, (h, eps) in zip(held, each, strict=True)]
        self._turn.prepare_again([job._replace(h=h) for job, h in zip(self._turn.jobs, fitted, strict=True)])
        return True

    def step(self, work: Work, skip: Tensor | None, scale: Any, skips: Skips | None = None) -> None:
        """Carry it out, count it, and round master weights into their parameters; raise `Changed` as engines do.

        `skip` is known on the device alone; `skips` informs the other processes.
        """
        nows = self._nows(work, scale)
        if self._peers is not None and skips is not None:
            self._peers.begin(nows, skips, partial(_words, self.plans, nows, self._options, self._stored))
        if self._remainders:
            self._remainders.follow()
        if work.ahead is not None and self._goes_on(work, work.ahead, nows):
            work.ahead.take()
        else:
            self._turn.step(work.grads_here, nows, skip, self._peers)
        if self._peers is not None:
            self._peers.taken()
        if self._remainders:
            self._remainders.written()
        self._counts.count(skip)
        for heres, masters in self._masters:
            torch._foreach_copy_(heres, masters)
        if self._wrappers:
            written(self._wrappers)

    def _nows(self, work: Work, scale: Any) -> list[Now]:
        # This rank may have nothing to step where others have.
        g_scale = 1.0 if scale is None else scalar(scale, any(due.group["differentiable"] for due in work.dues))
        return self._counts.nows([(due.h, (*due.rates, g_scale)) for due in work.dues])

    def ahead(self, work: Work, scale: Any, wait: Callable[[], None]) -> Ahead | None:
        """Return this step, of which sums are measured after a wait; None if it has to be taken at once."""
        try:
            nows = self._nows(work, scale)
            if work.ahead is not None and self._goes_on(work, work.ahead, nows):
                return work.ahead
            work.leave()
            if self._remainders and not self._remainders.current:
                return None
            steps = self._turn.ahead(work.grads_here, nows)
            next(steps)
        except Changed:
            return None
        return Ahead(steps, wait, self._turn.prepared, nows, self._arrays(work))

    def _goes_on(self, work: Work, ahead: Ahead, nows: list[Now]) -> bool:
        return ahead.is_of(self._turn.prepared, nows, self._arrays(work))

    def _described(self) -> str:
        """Return everything that defines the step and does not change from step to step."""
        plans = [plan.described() for plan in self.plans]
        return repr([[options[2:] for options in self._options], plans, self._stored])

    def stats(self) -> Iterator[tuple[Tensor, list[tuple[Any, dict[str, Any]]]]]:
        """Yield each parameter with the measurements of its step, by the names of its tensors."""
        return zip(self.params, self._turn.stats(_on_host), strict=False)


def _is_itself(job: Job, p: Tensor, state: Mapping[str, Any]) -> bool:
    """Return True if the engine gets these very tensors, and no others in the same memory."""
    return job.p is p and all(x is None or any(x is own for own in state.values()) for x in job.state)


def _on_host(measured: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.detach().cpu().double().numpy() if isinstance(v, Tensor) else v for k, v in measured.items()}


def _words(
    plans: Sequence[Plan], nows: Sequence[Now], options: Sequence[tuple[Any, ...]], stored: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Return the changing inputs of the step in words, to name those that differ on another process."""
    words: dict[str, Any] = {of_gradient(plan.name): "there" for plan in plans}
    for plan, now in zip(plans, nows, strict=True):
        words[f"the rule of {plan.name!r}"] = plan.h.optimizer
        words[f"the step of {plan.name!r}"] = now.t
        words[f"lr of {plan.name!r}"], words[f"weight_decay of {plan.name!r}"] = now.lr, now.weight_decay
        words |= {f"`{key}` of {plan.name!r}": in_words(value) for key, value in vars(plan.h).items()}
        words[f"beta2 of {plan.name!r} at this step"] = now.beta2
        words[f"the shape of {plan.name!r}"] = plan.in_words()
        words["grad_scale"] = now.g_scale
    for plan, want in zip(plans, (want for _, n, _, want in options for _ in range(n)), strict=True):
        words |= {f"`{key}` of {plan.name!r}": x for key, x in want.words().items()}
    for plan, one in zip(plans, stored, strict=True):
        words |= {f"the dtype of {key!r} of {plan.name!r}": x for key, x in one.items()}
    return words
