"""Parameters that step together: checked, laid out and handed to an engine once, while they stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from layerwise.core import turn
from layerwise.core.nows import Nows
from layerwise.core.storing import Storing
from layerwise.engines import Changed, Engine, compiled
from layerwise.engines.places import Looks, objects_of
from layerwise.hyper import Hyper, in_words
from layerwise.rules.asks import Now
from layerwise.storage.weights import MASTER, REMAINDER
from layerwise.torch.sharding._agreement import Agreement, of_gradient
from layerwise.torch.sharding._cuts import local
from layerwise.torch.sharding._peers import Peers, Skips
from layerwise.torch.step._ahead import Ahead
from layerwise.torch.step._counts import OfGroup, count, counts
from layerwise.torch.step._due import Work
from layerwise.torch.step._namespace import named
from layerwise.torch.step._plan import Plan
from layerwise.torch.step._products import quick
from layerwise.torch.step._tensors import alike

States = Mapping[Tensor, Mapping[str, Any]]
Options = Sequence[tuple[Any, ...]]


def _differ_in_numbers(options: Options, others: Options) -> bool:
    if len(options) != len(others):
        return False
    return all(
        rest == other_rest and type(h) is type(other) and h.form() == other.form()
        for (h, *rest), (other, *other_rest) in zip(options, others, strict=True)
    )


class Turn(turn.Turn):
    """A prepared step of these parameters; other ranks may hold parts of them."""

    plans: Sequence[Plan]

    def __init__(
        self,
        work: Work,
        plans: Sequence[Plan],
        storings: Sequence[Storing],
        states: States,
        own: Sequence[Mapping[str, Any]],
        on_device: bool,
        engines: Sequence[Engine],
        agreement: Agreement | None = None,
    ) -> None:
        here = work.params_here
        self.params, self.storings, self.on_device = list(work.params), storings, on_device
        self.states = own
        """The state of each parameter."""
        masters = [(x, local(state[MASTER])) for x, state in zip(here, own, strict=True) if MASTER in state]
        self._masters = list(alike(*zip(*masters, strict=True)))
        remainders = Remainders(here, own)
        self._remainders = remainders if remainders.any else None
        self._wrappers = [p for p, x in zip(work.stepped, here, strict=True) if p is not x]
        self._settings, self._sizes, self._options = work.settings, (work.which, work.sizes), work.options()
        self._objects = objects_of(self.params, states)
        self._stored = [dtypes(*one) for one in zip(here, own, strict=True) if agreement is not None]
        jobs = chain.from_iterable(map(Storing.jobs, storings, plans, work.stepped, own))
        super().__init__(engines, plans, list(jobs))
        alone = self.whole and agreement is None
        self._itself = alone and not self._wrappers and not masters  # engines get these very tensors
        self._looks = Looks(self._arrays(work), work.grads_here)
        self._dtypes = [g.dtype for g in work.grads_here]
        self._counts = Counts(work, self.states, on_device, self.prepared.counts and alone)
        self.agreement = agreement
        held = [one for plan in plans for one in plan.held]
        self._peers = None if agreement is None else Peers(agreement, held, self._described())

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
        kept = [x for state in self.states for key, x in state.items() if key != "step"]
        return [*work.params_here, *(map(local, kept) if self._wrappers else kept)]

    def has_settings(self, work: Work) -> bool:
        """Return True if the groups' settings have not changed."""
        if work.settings is self._settings and (work.which, work.sizes) == self._sizes:
            return True
        if work.options() != self._options:
            return False
        self._settings, self._sizes = work.settings, (work.which, work.sizes)
        return True

    def takes(self, work: Work) -> bool:
        """Return True if the groups' settings differ only in numbers, which this then takes over."""
        options, again = work.options(), self.prepared.layouts is not None
        # With others, what is planned is part of what is agreed.
        if self._peers is not None or not again or not _differ_in_numbers(options, self._options):
            return False
        self._settings, self._sizes, self._options = work.settings, (work.which, work.sizes), options
        held, hs = (one for plan in self.plans for one in plan.held), [h for h, n, *_ in options for _ in range(n)]
        each = [(h, plan.dtype) for h, plan in zip(hs, self.plans, strict=True) for _ in plan.held]
        jobs = []
        for job, one, (h, dtype) in zip(self.jobs, held, each, strict=True):
            h = h.on(quick(job.p.device, dtype))
            jobs.append(job._replace(h=h.fit(one.piece.shape, one.piece.block_dims, torch.finfo(dtype).eps)))
        self.prepare_again(jobs)
        self._counts.follow(work.hs)
        return True

    def step(self, work: Work, skip: Tensor | None, scale: Any, skips: Skips | None = None) -> None:
        """Carry it out, count it, and round master weights into their parameters; raise `Changed` as engines do.

        `skip` is known on the device alone; `skips` is what other processes are told.
        """
        nows = self._counts.nows(*work.rates, scale)
        if self._peers is not None and skips is not None:
            self._peers.begin(nows, skips, partial(_words, self.plans, nows, self._options, self._stored))
        if self._remainders:
            self._remainders.follow()
        if work.ahead is not None and self._goes_on(work, work.ahead, nows):
            work.ahead.take()
        else:
            grads, own = (work.grads_here, nows) if self.whole else self.of_jobs(work.grads_here, nows)
            (self.prepared.only or self.prepared).step(grads, own, skip, self._peers)
        if self._remainders:
            self._remainders.written()
        self._counts.count(skip)
        for heres, masters in self._masters:
            torch._foreach_copy_(heres, masters)
        if self._wrappers:
            increment_version(self._wrappers)

    def ahead(self, work: Work, scale: Any, wait: Callable[[], None]) -> Ahead | None:
        """Return this step, of which sums are measured after a wait; None if it has to be taken at once."""
        try:
            nows = list(self._counts.nows(*work.rates, scale))
            if work.ahead is not None and self._goes_on(work, work.ahead, nows):
                return work.ahead
            work.leave()
            if self._remainders and not self._remainders.current:
                return None
            steps = self.prepared.ahead(*self.of_jobs(work.grads_here, nows))
            next(steps)
        except Changed:
            return None
        return Ahead(steps, wait, self.prepared, nows, self._arrays(work))

    def _goes_on(self, work: Work, ahead: Ahead, nows: Sequence[Now]) -> bool:
        return ahead.is_of(self.prepared, list(nows), self._arrays(work))

    def _described(self) -> str:
        """Return everything that defines the step and does not change from step to step."""
        # Blocks are in the plans; by name they may be functions, whose addresses each process has its own of.
        options = [(capturable, want) for _, _, capturable, want, _ in self._options]
        return repr([options, [plan.described() for plan in self.plans], self._stored])

    def by_parameter(self) -> Iterator[tuple[Tensor, list[tuple[Any, dict[str, Any]]]]]:
        """Yield each parameter with the measurements of its step, by the names of its tensors."""
        return zip(self.params, self.stats(on_host), strict=False)

    def steppers(self) -> Iterator[tuple[Tensor, Plan, str]]:
        """Yield each parameter with its plan, and the engine that took its last step."""
        return zip(self.params, self.plans, self.stepped_by(), strict=False)


class Counts:
    """The step counts of parameters that step together, and the numbers that a step takes from them."""

    def __init__(self, work: Work, states: Sequence[Mapping[str, Any]], on_device: bool, by_engine: bool) -> None:
        self._steps, self._sizes = [state["step"] for state in states], work.sizes
        each = iter(self._steps)
        groups = [
            OfGroup(list(islice(each, n)), on_device or group["capturable"], by_engine)
            for group, n in zip(work.groups, work.sizes, strict=True)
        ]
        self._elsewhere = groups if any(group.on_device for group in groups) else []
        self._uncounted = [step for group in groups if not group.by_engine for step in group.steps]
        self.follow(work.hs)

    def follow(self, hs: Sequence[Hyper]) -> None:
        """Make the numbers of these settings of groups from now on."""
        self._hs, self._made = hs, Nows(hs, self._sizes)

    def nows(self, lr: Sequence[Any], weight_decay: Sequence[Any], g_scale: Any) -> Sequence[Now]:
        """Return each parameter's numbers of the step, from the rates of the groups and the scale of gradients."""
        if self._elsewhere:
            each = zip(self._elsewhere, self._hs, lr, weight_decay, strict=True)
            return [now for group, h, *rates in each for now in group.nows(h, (*rates, g_scale))]
        taken = compiled.counts(self._steps)
        t = [n + 1 for n in (counts(self._steps) if taken is None else taken)]
        return self._made.of(t, lr, weight_decay, g_scale)

    def count(self, skip: Tensor | None) -> None:
        """Count the step, where engines do not."""
        if self._uncounted and not (skip is None and compiled.count(self._uncounted)):
            count(self._uncounted, skip)


class Remainders:
    """The remainders of split weights, some of which belong to weights that have been written to since."""

    def __init__(self, heres: Sequence[Tensor], states: Sequence[Mapping[str, Any]]) -> None:
        each = zip(heres, states, strict=True)
        pairs = [(p, local(state[REMAINDER])) for p, state in each if REMAINDER in state]
        self._pairs, self._versions, self.any = pairs, [-1] * len(pairs), bool(pairs)

    @property
    def current(self) -> bool:
        """Whether the step wrote last."""
        return all(p._version == version for (p, _), version in zip(self._pairs, self._versions, strict=True))

    def follow(self) -> None:
        """Let weights that were set to zero be zero.

        Beside any other number, an outdated remainder is less than the weight's last place. Beside zero it would be the
        whole weight, and its norm is the measure of a step.
        """
        for (p, rest), version in zip(self._pairs, self._versions, strict=True):
            if p._version != version:
                rest.masked_fill_(p == 0, 0)

    def written(self) -> None:
        """Remember that everything written so far was written by the step."""
        self._versions = [p._version for p, _ in self._pairs]


def dtypes(p: Tensor, state: Mapping[str, Any]) -> dict[str, str]:
    """Return the dtypes of a parameter and of its state, by name."""
    stored = {"": p, **{key: x for key, x in state.items() if key != "step"}}
    return {key or "weights": named(x.dtype) for key, x in sorted(stored.items())}


def on_host(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return measurements in the host's memory."""
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
    for plan, want in zip(plans, (want for _, n, _, want, _ in options for _ in range(n)), strict=True):
        words |= {f"`{key}` of {plan.name!r}": x for key, x in want.words().items()}
    for plan, one in zip(plans, stored, strict=True):
        words |= {f"the dtype of {key!r} of {plan.name!r}": x for key, x in one.items()}
    return words
