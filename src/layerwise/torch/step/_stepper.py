"""The life of an optimizer's steps: from the work to plans, preparation, agreement, and the step itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import chain
from operator import itemgetter, methodcaller
from struct import pack
from typing import Any

import torch
from torch import Tensor

from layerwise.core.lock import StepLock
from layerwise.core.step import keep_latest, run_or_remake
from layerwise.engines.compiled import signals_wait
from layerwise.errors import ContradictionError, sentence, warn
from layerwise.options.settings import Hyper
from layerwise.rules.requests import Array, Scalar
from layerwise.torch.arrays._library import named
from layerwise.torch.groups._members import Group, Members, distinct_name
from layerwise.torch.groups._options import CheckedGroup
from layerwise.torch.groups._rules import capturing, check_capture, on_gpu, scalar
from layerwise.torch.sharding import _cuts as cuts
from layerwise.torch.sharding._agreement import Agreement, StepSkipped, gradient_key
from layerwise.torch.sharding._dtensors import local_parts
from layerwise.torch.sharding._ranks import ProcessGroupRef, Ranks
from layerwise.torch.sharding._sums import SkipDecision
from layerwise.torch.step import _checks
from layerwise.torch.step._plan import forget_state, has_state
from layerwise.torch.step._planner import PlannedWork, Planner, Setup
from layerwise.torch.step._prepared import TensorStep, on_host, with_numbers
from layerwise.torch.step._work import Elsewhere, GroupRates, Work

PARAMS, NAMES = itemgetter("params"), methodcaller("get", "param_names")  # of a group


class Stepper:
    """The steps of one optimizer. A copy of the optimizer keeps only `skipped`, and computes the rest again."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        setup: Setup,
        groups: Mapping[str, ProcessGroupRef | None],
        skipped: int | Tensor = 0,
    ) -> None:
        self.setup, self.groups, self.members = setup, setup.groups, Members(optimizer)
        self.optimizer = self.members.optimizer
        """The optimizer of these steps, by a weak reference."""
        self.one_at_a_time = StepLock()
        self.steps: dict[bytes, TensorStep] = {}
        """The prepared steps by their parameters, the most recently taken at the end."""
        self.ranks = Ranks(self.members, groups, setup.groups, self.one_at_a_time, self.steps.clear)
        self.planner = Planner(setup, self.members, self.ranks)
        self.skipped = skipped
        """The number of skipped steps."""
        self.when_zeroed: list[Callable[[], None]] = []
        self.in_backward = False
        """Whether hooks step parameters in the backward pass."""
        self._rates: dict[tuple[int, ...] | None, GroupRates] = {}  # of all groups, and of some by their numbers
        self._names: list[Sequence[str] | None] = []  # of all groups' parameters, as they were planned
        self._captured: list[TensorStep] = []  # what CUDA graphs replay
        self._idle = 0  # parameters without gradients in the last step
        self.elsewhere: Elsewhere | None = None
        """What finds the gradient of a parameter that has none."""

    def of(self, optimizer: Any, steps: bool = False) -> Stepper:
        """Return the `Stepper` of an optimizer that has this one among its attributes.

        A wrapper may share our `__dict__`. Until it takes a step itself, or the wrapped optimizer is gone, it uses the
        wrapped optimizer's Stepper.
        """
        own = self.members.own()
        if own is optimizer or not (steps or own is None):
            return self
        optimizer._stepper = made = type(self)(optimizer, self.setup, self.ranks.groups, self.skipped)
        return made

    def forget(self) -> None:
        """Plan, check and warn again from now on."""
        self.groups.forget()
        self._rates.clear()
        self.steps.clear()
        self.planner.forget()

    def in_place_of(self, p: Tensor) -> Tensor:
        """Return the array that is stepped in a parameter's place, with its present numbers."""
        return p

    def take_over(self, p: Tensor) -> None:
        """Copy the numbers that were written to the array stepped in a parameter's place back to it."""

    # ---- the work of a step

    def settings_of(self, group: Group) -> CheckedGroup:
        """Return what follows from a group's options, or raise if one of its options is wrong, here and now."""
        checked = self.groups.check(group)
        self._check_here(group, checked.h)
        return checked

    def work_of(self, asked: Sequence[Sequence[Tensor]], numbers: tuple[int, ...] | None = None) -> Work:
        """Return the work of these parameters of all groups, or of the groups with these numbers.

        Raise if one of their options is wrong now.
        """
        groups, found = self.optimizer.param_groups, self._rates.get(numbers)
        if numbers is not None:
            groups = [groups[i] for i in numbers]
        if found is None or not found.unchanged(groups):
            found = GroupRates(groups, self.groups, numbers, found)
            keep_latest(self._rates, numbers, found, (self.members.groups,))
        if self.ranks.groups["model_group"] is not None or (on_gpu() and capturing()):
            for group, checked in zip(groups, found.settings.each, strict=True):
                self._check_here(group, checked.h)
        return Work.of(found, groups, asked, self.elsewhere)

    def _follow_names(self) -> None:
        """Plan again, because a parameter has another name: its blocks, random bits and measurements depend on it."""
        self._names = list(map(copy, map(NAMES, self.optimizer.param_groups)))
        self.steps.clear()

    def _check_here(self, group: Group, h: Hyper) -> None:
        if capturing():
            check_capture(group, self.groups.scheduled(self.members.own(), group), self.ranks.current is not None)
        per_tensor = group.get("max_grad_norm_per_tensor")
        if h.needs_model_sum and per_tensor and self.ranks.model_group is not None:
            raise ContradictionError(
                sentence(
                    "max_grad_norm_per_tensor",
                    "None with max_grad_norm and a model_group",
                    per_tensor,
                    "Drop one of them: the global norm is not known yet in the first round.",
                )
            )

    @property
    def agreement(self) -> Agreement | None:
        """The agreement with the processes that hold other parts of the parameters, or None."""
        ranks = self.ranks
        return ranks.current if ranks.described == cuts.CHANGES[0] else ranks.agreement()

    @torch._disable_dynamo  # type: ignore[attr-defined]  # loses count of rules that wait; imports itself when called
    def step(self) -> None:
        """Step every parameter that has a gradient."""
        asked = list(map(PARAMS, self.optimizer.param_groups))
        work = self.work_of(asked)
        idle = sum(map(len, asked)) - len(work.params)
        if idle != self._idle or not work.params:
            self._idle = idle
            self.ranks.check_model()
            self._warn_if_frozen(work)
        self.step_due(work, self.agreement)

    def _warn_if_frozen(self, work: Work) -> None:
        params = list(chain.from_iterable(map(PARAMS, self.optimizer.param_groups)))
        if params and not work.params and not any(p.requires_grad for p in params):
            warn(
                "no parameter of the optimizer requires grad or has a gradient, so its steps change nothing. Pass "
                "model.parameters() and not a state_dict's tensors, or thaw the model by requires_grad_()."
            )

    # ---- a step

    def step_due(self, work: Work, agreement: Agreement | None) -> None:
        """Step these parameters together: all, or none if one of them cannot be stepped here or on another rank."""
        if not work.params and agreement is None:
            return
        with self.one_at_a_time, signals_wait, torch.set_grad_enabled(self.groups.differentiable):
            might_skip = self.might_skip
            if list(map(NAMES, self.optimizer.param_groups)) != self._names:
                self._follow_names()
            # Once, because both may use collectives: only this process knows whether its step is prepared again.
            if self.ranks.wrapped:
                work = self._local(work, agreement)
            if might_skip or self.planner.resolves:
                work = self.planner.readable(work)
            self.take_step(work, might_skip, agreement)

    def step_work(self, work: Work, might_skip: bool, agreement: Agreement | None) -> None:
        """Step parameters in place, by what was prepared before, or by a new preparation."""
        key = self.key_of(work, agreement)
        step, planned = self.unchanged(key, work, not might_skip), None
        if step is None:
            planned = self.planner.planned(work)
            work = planned.work
            if not self.ranks.are_known(work.params):  # the caller has changed a group's list
                self.step_due(work.as_asked(), self.ranks.renewed(agreement))
                return
        self._agreed_step(key, work, step, planned, might_skip, agreement)

    take_step = step_work

    def _agreed_step(
        self,
        key: bytes,
        work: Work,
        step: TensorStep | None,
        planned: PlannedWork | None,
        might_skip: bool,
        agreement: Agreement | None,
    ) -> None:
        """Take a step, or skip it if this process or another one has to."""
        skip, skips = self.to_skip(work) if might_skip else None, None
        if agreement is not None:  # other processes' reports decide as well
            scaler = getattr(self.optimizer, "found_inf", None) is not None
            skip, skips = None, SkipDecision(bool(skip), self.setup.skip_nonfinite, scaler)
        elif isinstance(skip, bool):
            self.skipped += 1
            return
        states, on_device = self.optimizer.state, skip is not None
        new = () if step is not None else [p for p in work.params if p not in states or not has_state(states[p])]
        try:
            if step is None or step.on_device != on_device:
                planned = planned or PlannedWork(work, work.dues, [] if step is None else step.plans)
                step = self.planner.prepare(planned, on_device, agreement)
            step = self._taken(work, step, skip, skips, agreement)
        except Exception as answer:
            for p in new:  # a step that is not taken leaves no trace
                forget_state(states, p)
            if not isinstance(answer, StepSkipped):
                raise
            self.skipped += 1
            return
        self.remember(key, step, skip)
        firsts = self.planner.firsts
        if firsts.odd or firsts.waiting:
            firsts.warn(step, work.dues if planned is None else planned.dues, skip)

    def _local(self, work: Work, agreement: Agreement | None) -> Work:
        """Return the work with the local parts of parameters and gradients."""
        agreed = partial(self._agree_to_redistribute, agreement, work)
        params_here, grads_here = local_parts(work.params, work.grads, agreed)
        return work._replace(params_here=params_here, grads_here=grads_here)

    def _agree_to_redistribute(self, agreement: Agreement | None, work: Work, elsewhere: Sequence[int]) -> None:
        """Make sure that all processes will redistribute these gradients."""
        if agreement is None:
            return
        names, grads = self.members.names_of(work.dues), work.grads
        words = {gradient_key(name): "present" for name in names}
        placed: dict[int, Any] = {i: grads[i] for i in elsewhere}
        words |= {gradient_key(names[i]): f"present, placed {g.placements}" for i, g in placed.items()}
        agreement.agree_on(words)

    @staticmethod
    def key_of(work: Work, agreement: Agreement | None = None) -> bytes:
        """Return the key that distinguishes steps of different parameters."""
        return pack(f"{1 + len(work.params)}N", id(agreement), *map(id, work.params))  # bytes cache their hash

    def unchanged(self, key: bytes, work: Work, at_once: bool) -> TensorStep | None:
        """Return the step that these parameters took before, if nothing that it depends on has changed except numbers.

        If it runs `at_once`, an engine that gets these very tensors checks them itself, and may raise `ArraysChanged`.
        """
        step = None if self.groups.differentiable else self.steps.get(key)
        if step is None or not step.seen.consists_of(work.params, self.optimizer.state):
            return None
        same = step.seen.settings == work.planned_for
        looks = same and at_once and step.by_engine
        if not looks and not step.seen.same_memory(step.arrays(work), work.grads_here):
            return None
        return step if same else with_numbers(step, work)

    def _taken(
        self, work: Work, step: TensorStep, skip: Tensor | None, skips: SkipDecision | None, agreement: Agreement | None
    ) -> TensorStep:
        """Run a step, or a new one if an engine notices that this one is no longer valid."""
        given = skip, self.scale, skips

        def remade() -> TensorStep:
            nonlocal work
            planned = self.planner.planned(work)  # raises errors for whatever is wrong
            work = planned.work
            return self.planner.prepare(planned, skip is not None, agreement)

        return run_or_remake(step, remade, lambda one: one.take(work, *given))[0]

    @property
    def scale(self) -> Scalar:
        scale = getattr(self.optimizer, "grad_scale", None)
        return 1.0 if scale is None else scalar(scale, self.groups.differentiable)

    # ---- skipping

    @property
    def might_skip(self) -> bool:
        """Whether non-finite gradients may skip a step."""
        return self.setup.skip_nonfinite or getattr(self.optimizer, "found_inf", None) is not None

    def to_skip(self, work: Work) -> Tensor | bool | None:
        """Return True if this process skips the step."""
        return _checks.to_skip(
            cuts.numbers_of(work.params, work.grads_here),
            getattr(self.optimizer, "found_inf", None),
            self.setup.skip_nonfinite,
        )

    # ---- afterwards

    def remember(self, key: bytes, step: TensorStep, skip: Tensor | None) -> None:
        """Keep the step for the next time, within the limit, and count a skipped step that only the device knows of."""
        if skip is not None:
            # In place, so that a captured step continues to count.
            self.skipped += skip.to(self.skipped.device) if isinstance(self.skipped, Tensor) else skip
        if on_gpu() and capturing() and step not in self._captured:
            self._captured.append(step)
        if next(reversed(self.steps.values()), None) is not step:
            keep_latest(self.steps, key, step, (self.members,))

    def engines_by_parameter(self) -> dict[str, str]:
        """Return, by parameters' names, the engine that took the last step of each."""
        each = (zip(step.params, step.plans, step.engine_per_plan(), strict=False) for step in self.steps.values())
        latest = {p: (str(plan.name), by) for p, plan, by in chain.from_iterable(each)}
        found = dict[str, str]()
        for name, by in latest.values():
            found[distinct_name(name, found)] = by
        return found

    def products(self) -> Counter[str]:
        """Return the dtypes in which matrices were multiplied in their last steps, and of how many tensors."""
        each = (zip(step.params, step.plans, strict=True) for step in self.steps.values())
        latest = {p: plan.multiplied_in(named(p.dtype)) for p, plan in chain.from_iterable(each)}
        return Counter(dtype for dtype in latest.values() if dtype)

    def measured(self) -> Iterator[tuple[Tensor, str, dict[str, Array]]]:
        """Yield each parameter with the name and the measurements of its last step, tensor by tensor."""
        each = (zip(step.params, step.stats(on_host), strict=False) for step in self.steps.values())
        latest = dict(chain.from_iterable(each))
        found: list[str] = []
        for p, measured in latest.items():
            for name, one in measured:
                found.append(distinct_name(str(name), found))
                yield p, found[-1], one


def stepper_of(optimizer: Any) -> Stepper:
    """Return the life of an optimizer's steps, as `Stepper.of` answers for it."""
    found: Stepper = optimizer._stepper.of(optimizer)
    return found
