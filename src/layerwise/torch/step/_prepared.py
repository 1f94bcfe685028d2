"""A prepared step of PyTorch's tensors: its data besides plans and jobs, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import chain, islice
from operator import is_not
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from layerwise.core.library import EPSILON
from layerwise.core.step import Snapshot, Step, StepNumbers
from layerwise.core.storage_plan import StoragePlan
from layerwise.engines import ArraysChanged, DeviceStepCount, Engine, Stats, compiled
from layerwise.engines.addresses import States
from layerwise.errors import HyperparameterError, sentence
from layerwise.options.settings import Hyper, as_plain_value
from layerwise.rules.requests import Array, Now, Scalar
from layerwise.storage.options import RequestedStorage
from layerwise.storage.sixteen_bits import MASTER, REMAINDER
from layerwise.torch.arrays._library import LIBRARY, fast_product_dtype, named
from layerwise.torch.sharding._agreement import Agreement, gradient_key
from layerwise.torch.sharding._dtensors import local
from layerwise.torch.sharding._sums import RankSums, SkipDecision
from layerwise.torch.step._checks import by_device_and_dtype, why_unreadable
from layerwise.torch.step._measured_step import MeasuredStep
from layerwise.torch.step._plan import Plan
from layerwise.torch.step._work import Work


def with_numbers(step: TensorStep, work: Work) -> TensorStep | None:
    """Return a step like this one with other numbers in its settings, or None if more differs."""
    options, sizes = work.planned_for
    # With other ranks, plans are part of what is agreed on.
    if step.agreement is not None or not _differ_in_numbers((options, sizes), step.seen.settings):
        return None
    hs = (h for (h, *_), n in zip(options, sizes, strict=True) for _ in range(n))
    hs = (h.with_fast_dtype(fast_product_dtype(x.device, x.dtype)) for h, x in zip(hs, work.params_here, strict=True))
    each = ((h, EPSILON[LIBRARY.dtype(x)], plan) for h, x, plan in zip(hs, work.params_here, step.plans, strict=True))
    fitted = (h.fit(one.piece.shape, one.piece.block_dims, eps) for h, eps, plan in each for one in plan.held)
    made = step.with_numbers((options, sizes), fitted)
    if made is not None:
        made.counts = step.counts.with_settings(work.hs)
    return made


def _differ_in_numbers(settings: Any, before: Any) -> bool:
    (options, sizes), (others, other_sizes) = settings, before
    return sizes == other_sizes and all(
        rest == other_rest and type(h) is type(other) and h.without_numbers() == other.without_numbers()
        for (h, *rest), (other, *other_rest) in zip(options, others, strict=True)
    )


class TensorStep(Step):
    """A step of planned parameters, whose own state is there and in the wanted form; other ranks may hold parts."""

    def __init__(
        self,
        work: Work,
        plans: Sequence[Plan],
        storage_plans: Sequence[StoragePlan],
        states: States,
        own: Sequence[Mapping[str, Tensor]],
        on_device: bool,
        engines: Sequence[Engine],
        agreement: Agreement | None = None,
    ) -> None:
        here = work.params_here
        self.params, self.storage_plans, self.on_device = list(work.params), storage_plans, on_device
        self.agreement = agreement
        self.states = own
        """The state of each parameter."""
        masters = [(x, local(state[MASTER])) for x, state in zip(here, own, strict=True) if MASTER in state]
        self._masters = list(by_device_and_dtype(*zip(*masters, strict=True))) if masters else []
        remainders = Remainders(here, own)
        self._remainders = remainders if remainders.any else None
        self._wrappers = [p for p, x in zip(work.stepped, here, strict=True) if p is not x]
        self._words: Callable[[Sequence[Now]], dict[str, object]] | None = None
        self._peers = None if agreement is None else self._with_others(work, plans, agreement)
        jobs = list(chain.from_iterable(map(StoragePlan.jobs, storage_plans, plans, work.stepped, own)))
        seen = Snapshot(work.planned_for, work.params, states, self.arrays(work), work.grads_here)
        super().__init__(seen, engines, plans, jobs)
        alone = self.whole and agreement is None
        self.by_engine = alone and not self._wrappers and not self._masters
        """Whether engines get these very tensors, and look at them themselves; others see views or local parts."""
        self.counts = StepCounts(work, own, on_device, self.prepared.counts and alone)

    def _with_others(self, work: Work, plans: Sequence[Plan], agreement: Agreement) -> RankSums:
        stored = list(map(dtypes, work.params_here, self.states))
        wants = [due.want for due in work.dues for _ in due.params]
        self._words = partial(_words, plans, wants, stored)
        # Everything that defines the step and does not change from step to step. Blocks are in the plans; by name they
        # may be functions, whose addresses differ between processes.
        options = [(due.group["capturable"], due.want) for due in work.dues]
        described = repr([options, [plan.described() for plan in plans], stored])
        return RankSums(agreement, [one for plan in plans for one in plan.held], described)

    def arrays(self, work: Work) -> list[Tensor]:
        """Return the local parts of all parameters, and of their state without the counts."""
        kept = [x for state in self.states for key, x in state.items() if key != "step"]
        return [*work.params_here, *(map(local, kept) if self._wrappers else kept)]

    def take(self, work: Work, skip: Tensor | None, scale: Scalar, skips: SkipDecision | None = None) -> None:
        """Run the step, count it, and round master weights into their parameters; raise `ArraysChanged` like engines.

        `skip` is only known on the device; `skips` is reported to other processes.
        """
        nows = self.counts.nows(*work.rates, scale)
        if self._peers is not None and self._words is not None and skips is not None:
            self._peers.begin(nows, skips, partial(self._words, nows))
        if self._remainders:
            self._remainders.follow()
        if work.ahead is not None and self._goes_on(work, work.ahead, nows):
            work.ahead.take()
        else:
            self.run(work.grads_here, nows, skip, self._peers)
        if self._remainders:
            self._remainders.written()
        self.counts.count(skip)
        for heres, masters in self._masters:
            torch._foreach_copy_(heres, masters)
        if self._wrappers:
            increment_version(self._wrappers)

    def ahead(self, work: Work, scale: Scalar, wait: Callable[[], None]) -> MeasuredStep | None:
        """Return the step if its sums are measured only after a wait; None if it has to be taken at once."""
        try:
            nows = list(self.counts.nows(*work.rates, scale))
            if work.ahead is not None and self._goes_on(work, work.ahead, nows):
                return work.ahead
            work.leave()
            if self._remainders and not self._remainders.current:
                return None
            steps = self.prepared.step_in_parts(*self.inputs_per_job(work.grads_here, nows))
            next(steps)
        except ArraysChanged:
            return None
        return MeasuredStep(steps, wait, self.prepared, nows, self.arrays(work))

    def _goes_on(self, work: Work, ahead: MeasuredStep, nows: Sequence[Now]) -> bool:
        return ahead.is_of(self.prepared, list(nows), self.arrays(work))


class StepCounts:
    """The step counts of parameters that step together, and the numbers that a step derives from them."""

    def __init__(self, work: Work, states: Sequence[Mapping[str, Tensor]], on_device: bool, by_engine: bool) -> None:
        self._steps = [state["step"] for state in states]
        each, hs = iter(self._steps), work.hs
        groups = [
            GroupCounts(list(islice(each, n)), on_device or group["capturable"], by_engine)
            for group, n in zip(work.groups, work.sizes, strict=True)
        ]
        self._elsewhere = groups if any(group.on_device for group in groups) else []
        self._uncounted = [step for group in groups if not group.by_engine for step in group.steps]
        self._sizes, self._made = work.sizes, StepNumbers(hs, work.sizes)
        self._hs: Sequence[Hyper] = hs

    def with_settings(self, hs: Sequence[Hyper]) -> StepCounts:
        """Return the same counts of groups with these settings."""
        made = copy(self)
        made._hs, made._made = hs, StepNumbers(hs, self._sizes)
        return made

    def nows(self, lr: Sequence[Any], weight_decay: Sequence[Any], g_scale: Scalar) -> Sequence[Now]:
        """Return each parameter's numbers of the step, from the rates of the groups and the scale of gradients."""
        if self._elsewhere:
            each = zip(self._elsewhere, self._hs, lr, weight_decay, strict=True)
            return [now for group, h, *rates in each for now in group.nows(h, (*rates, g_scale))]
        taken = compiled.counts(self._steps)
        t = list(map((1).__add__, step_counts(self._steps) if taken is None else taken))
        return self._made.nows_of_tensors(t, lr, weight_decay, g_scale)

    def count(self, skip: Tensor | None) -> None:
        """Count the step, if engines do not."""
        if self._uncounted and not (skip is None and compiled.count(self._uncounted)):
            count_steps(self._uncounted, skip)


class Remainders:
    """The remainders of split weights; some may belong to weights that have been written to since."""

    def __init__(self, heres: Sequence[Tensor], states: Sequence[Mapping[str, Tensor]]) -> None:
        each = zip(heres, states, strict=True)
        pairs = [(p, local(state[REMAINDER])) for p, state in each if REMAINDER in state]
        self._pairs, self._versions, self.any = pairs, [-1] * len(pairs), bool(pairs)

    @property
    def current(self) -> bool:
        """Whether the step wrote last."""
        return all(p._version == version for (p, _), version in zip(self._pairs, self._versions, strict=True))

    def follow(self) -> None:
        """Let weights that were set to zero be zero.

        An outdated remainder is less than the last place of any other weight. Of a zero it would be the whole weight,
        whose norm determines the step.
        """
        for (p, rest), version in zip(self._pairs, self._versions, strict=True):
            if p._version != version:
                rest.masked_fill_(p == 0, 0)

    def written(self) -> None:
        """Remember that everything written so far was written by the step."""
        self._versions = [p._version for p, _ in self._pairs]


def dtypes(p: Tensor, state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the dtypes of a parameter and of its state, by name."""
    stored = {"": p, **{key: x for key, x in state.items() if key != "step"}}
    return {key or "weights": named(x.dtype) for key, x in sorted(stored.items())}


def on_host(measured: Stats) -> dict[str, Array]:
    """Return measurements in host memory."""
    return {k: v.detach().cpu().double().numpy() if isinstance(v, Tensor) else v for k, v in measured.items()}


def _words(
    plans: Sequence[Plan], wants: Sequence[RequestedStorage], stored: Sequence[Mapping[str, str]], nows: Sequence[Now]
) -> dict[str, object]:
    """Return the changing inputs of the step in words, to name those that differ on another process."""
    words: dict[str, object] = {gradient_key(plan.name): "present" for plan in plans}
    for plan, now in zip(plans, nows, strict=True):
        words[f"the rule of {plan.name!r}"] = plan.h.optimizer
        words[f"the step of {plan.name!r}"] = now.t
        words[f"lr of {plan.name!r}"], words[f"weight_decay of {plan.name!r}"] = now.lr, now.weight_decay
        words |= {f"`{key}` of {plan.name!r}": as_plain_value(value) for key, value in vars(plan.h).items()}
        words[f"beta2 of {plan.name!r} at this step"] = now.beta2
        words[f"the shape of {plan.name!r}"] = plan.in_words()
        words["grad_scale"] = now.g_scale
    for plan, want in zip(plans, wants, strict=True):
        words |= {f"`{key}` of {plan.name!r}": x for key, x in want.as_options().items()}
    for plan, one in zip(plans, stored, strict=True):
        words |= {f"the dtype of {key!r} of {plan.name!r}": x for key, x in one.items()}
    return words


Rates = tuple[Scalar, Scalar, Scalar]  # lr, weight decay, and the scale of gradients


def step_counts(steps: list[Tensor]) -> list[int]:
    """Return the number of steps that each of these has counted."""
    found = compiled.counts(steps)
    if found is None and any(why_unreadable(step) or step.numel() != 1 for step in steps):
        raise ArraysChanged
    return [int(step.item()) for step in steps] if found is None else found


def count_steps(steps: list[Tensor], skip: Tensor | None) -> None:
    """Count the step in each of these, unless it was skipped."""
    if skip is None and compiled.count(steps):
        return
    for (some,) in by_device_and_dtype(steps):
        # As a list, because PyTorch may read a single tensor as a number, and wait for it.
        torch._foreach_add_(some, 1 if skip is None else [(~skip).to(some[0])] * len(some))


class GroupCounts:
    """Step counts that are read as numbers, or on the device by calls that do not wait; or counted `by_engine`."""

    def __init__(self, steps: list[Tensor], on_device: bool, by_engine: bool) -> None:
        # Counts that once had to be on the device stay there: reading them would mean waiting. All of them are there
        # then.
        self.steps, self.on_device = steps, on_device or bool({step.device.type for step in steps} - {"cpu"})
        self.by_engine = by_engine and self.on_device
        self._counters = [DeviceStepCount(step) for step in steps] if self.by_engine else []
        self._of: tuple[object, ...] = ()  # what these were made from
        self._nows: list[Now] = []

    def nows(self, h: Hyper, rates: Rates) -> Sequence[Now]:
        """Return each parameter's numbers of the step from these settings and rates."""
        if not self.on_device:
            lr, weight_decay, scale = rates
            return StepNumbers([h], [len(self.steps)]).nows_of_tensors(
                [n + 1 for n in step_counts(self.steps)], [lr], [weight_decay], scale
            )
        if not self.by_engine:
            return [Now(t, *rates, beta2=_beta2(h, t)) for t in torch._foreach_add(self.steps, 1)]
        if h.follows_step:
            steps = torch._foreach_add(self.steps, 1)
            return [Now(c, *rates, beta2=_beta2(h, t)) for c, t in zip(self._counters, steps, strict=True)]
        if not self._of or any(map(is_not, self._of, (h, *rates))):
            self._of = h, *rates
            self._nows = [Now(counter, *rates, beta2=h.beta2_of(1)) for counter in self._counters]
        return self._nows


def _beta2(h: Hyper, t: Tensor) -> Scalar | None:
    """Return β₂ at the step t, which only the device knows: a user's function computes with tensors then."""
    if not h.follows_step:
        return h.beta2_of(1)
    exact = torch.float32 if t.device.type == "mps" else torch.float64
    found = h.beta2_of(t.to(exact), torch.clamp_min)
    if isinstance(found, Tensor) and found.numel() != 1:
        way_out = "A function must return one for every step."
        raise HyperparameterError(sentence("beta2(step)", "one number", found, way_out))
    return found.reshape(()) if isinstance(found, Tensor) else found
