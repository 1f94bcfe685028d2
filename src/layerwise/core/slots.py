"""The tensors of an API that keeps their state in slots, and their steps."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from layerwise.catalog.hidden_matrices import is_misplaced_vector, is_unsplit_matrix
from layerwise.core.first_step import FirstStep
from layerwise.core.library import Library
from layerwise.core.plan import Plan
from layerwise.core.slot import Slot, StepMeasurements
from layerwise.core.step import Snapshot, Step, StepNumbers, keep_latest, run_or_remake
from layerwise.core.storage_plan import StoragePlan
from layerwise.engines import Engine, Job
from layerwise.errors import ParameterError, warn
from layerwise.options.by_name import Name, first_few
from layerwise.rules.requests import Array
from layerwise.storage.options import RequestedStorage


class TensorsToStep(NamedTuple):
    """The tensors to step: their names, weights and gradients."""

    names: Sequence[Name]
    params: Sequence[Array]
    grads: Sequence[Array]


class PlannedTensor(NamedTuple):
    """The plan of one tensor's step, and the API's additions."""

    plan: Plan
    want: RequestedStorage
    own: tuple[float, ...] = ()  # read only by the API


class StepScalars(NamedTuple):
    """The numbers that change from step to step: for each tensor its step count, its learning rate and weight decay."""

    t: Sequence[int]
    lr: Sequence[float]
    weight_decay: Sequence[float]


class Api(Protocol):
    """The API's knowledge about its tensors."""

    @property
    def keeps_weights(self) -> bool:
        """True if the optimizer keeps the weights; False if the user lends them to each step."""

    @property
    def has_blocks(self) -> bool:
        """True if blocks were given, possibly for other tensors."""

    def step_dependencies(self, due: TensorsToStep) -> object:
        """Return the objects that a prepared step depends on, besides those that engines check themselves."""

    def plan_tensors(self, due: TensorsToStep) -> list[PlannedTensor]:
        """Return the plan of each tensor, or raise if one cannot be stepped."""

    def step_scalars(self, planned: Sequence[PlannedTensor], counts: Sequence[int]) -> StepScalars:
        """Return the numbers of the next step of tensors with these step counts."""

    def largest_lr(self, planned: PlannedTensor, lr: float) -> float | None:
        """Return the largest of a tensor's learning rates, as far as it is known."""


class SlotStep(Step):
    """A step of tensors with slots."""

    def __init__(
        self,
        seen: Snapshot,
        engines: Sequence[Engine],
        planned: Sequence[PlannedTensor],
        jobs: Sequence[Job],
        slots: Sequence[Slot],
    ) -> None:
        plans = [one.plan for one in planned]
        super().__init__(seen, engines, plans, jobs)
        self.planned, self.slots = planned, slots  # in the wanted form
        self.converted: Sequence[tuple[int, Array]] = ()  # weights that become others as they are stored in another way
        # The dtype of weights in 16 bits that are rounded to nearest, with nothing kept beside.
        self.loses: Sequence[str | None] = ()
        self.masters = [(i, slot.master) for i, slot in enumerate(slots) if slot.master is not None]
        """The places of weights with what they are copies of."""
        self.numbers, self.result = StepNumbers([plan.h for plan in plans], [1] * len(plans)), StepMeasurements(plans)


class Slots:
    """The slots of one optimizer's tensors, and their steps."""

    def __init__(self, lib: Library) -> None:
        self.lib = lib
        self.slots: dict[Any, Slot] = {}
        self.furthest = 0  # the largest step count of a tensor
        self.skipped = 0
        self._steps: dict[Hashable, SlotStep] = {}  # by the names of the tensors, the last taken at the end
        self._said = False  # whether tensors were seen whose first step alone shows problems

    def __reduce__(self) -> tuple[object, ...]:
        return Slots, (self.lib,), {"slots": self.slots, "furthest": self.furthest, "skipped": self.skipped}

    def drop_steps(self) -> None:
        """Throw all prepared steps away, and with them their arrays."""
        self._steps.clear()

    def replace_slots(self, slots: dict[Any, Slot]) -> None:
        """Continue with these slots in place of the present ones."""
        self.slots = slots
        self.drop_steps()

    def clear(self, name: Name | None) -> None:
        """Forget the state of one tensor, or of all."""
        if name is not None and (isinstance(name, bool) or name not in self.slots):
            raise ParameterError(f"no state is kept for {name!r}. Names with state: {first_few(self.slots)}.")
        self.furthest = 0 if name is None else self.furthest
        self.replace_slots({one: slot for one, slot in self.slots.items() if name not in (None, one)})

    def stats(self) -> dict[Any, dict[str, Array]]:
        """Return the measurements of each tensor's last step."""
        last = {name: slot.last for name, slot in self.slots.items() if slot.last is not None}
        stats = {id(result): result.stats() for result in {id(result): result for result, _ in last.values()}.values()}
        return {name: stats[id(result)][i] for name, (result, i) in last.items()}

    # ---- a step

    def reusable_step(self, api: Api, due: TensorsToStep) -> SlotStep | None:
        """Return the step that these tensors took before, if everything that it depends on is the same."""
        step = self._steps.get((*due.names,))
        if step is None or step.seen.settings != (list(map(self.slots.get, due.names)), api.step_dependencies(due)):
            return None
        # If engines have these very arrays, they check them themselves. Views would not follow them to another place.
        viewed = api.keeps_weights and not step.whole
        return step if not viewed or step.seen.same_memory(due.params) else None

    def step_tensors(
        self, api: Api, due: TensorsToStep, engines: Sequence[Engine], step: SlotStep | None
    ) -> list[FirstStep]:
        """Step all of these tensors, or raise and change none. Return first steps that were not warned of.

        `step` is the step that is `unchanged`, if there is one.
        """
        step, rates = run_or_remake(step, partial(self._made, api, due, engines), partial(self._run, api, due))
        key = (*due.names,)
        if next(reversed(self._steps.values()), None) is step:
            return []
        for i, slot in enumerate(step.slots):
            slot.last = step.result, i
        new = [i for i, name in enumerate(due.names) if name not in self.slots and 0 not in step.planned[i].plan.shape]
        self.slots.update(zip(due.names, step.slots, strict=True))
        keep_latest(self._steps, key, step, [self.slots])
        firsts = list(_firsts(api, step, new, rates))
        said, self._said = self._said, self._said or any(one.warns_once for one in firsts)
        return [one for one in firsts if not (said and one.warns_once)]

    def _made(self, api: Api, due: TensorsToStep, engines: Sequence[Engine]) -> SlotStep:
        """Return a new step: plans, then slots in the wanted format, then what engines prepare. Nothing is changed."""
        planned = api.plan_tensors(due)
        plans = [one.plan for one in planned]
        dtypes = map(self.lib.dtype, due.params)
        storage_plans = [StoragePlan(self.lib, one.plan, x, one.want) for one, x in zip(planned, dtypes, strict=True)]
        each = zip(storage_plans, due.params, map(self.slots.get, due.names), strict=True)
        slots, converted = zip(*(in_wanted_storage(*one) for one in each), strict=True)
        jobs, alone = list[Job](), not api.keeps_weights
        for storage_plan, plan, p, slot in zip(storage_plans, plans, due.params, slots, strict=True):
            own = storage_plan.jobs(plan, p, slot.arrays)
            jobs += [job._replace(p=None) for job in own] if alone and slot.master is None else own
        if any(job.h.needs_model_sum for job in jobs):
            jobs = [job._replace(h=job.h.counted_in_norm()) for job in jobs]
        seen = Snapshot((list(slots), api.step_dependencies(due)), arrays=due.params if api.keeps_weights else ())
        step = SlotStep(seen, engines, planned, jobs, slots)
        step.converted = [(i, x) for i, x in enumerate(converted) if x is not None]
        step.loses = [own.rounding_dtype(slot.arrays) for own, slot in zip(storage_plans, slots, strict=True)]
        return step

    def _run(self, api: Api, due: TensorsToStep, step: SlotStep) -> StepScalars:
        """Run a step, count it, and write masters into weights."""
        rates = api.step_scalars(step.planned, [slot.step for slot in step.slots])
        nows = step.numbers.nows_of_tensors(*rates)
        for i, x in step.converted:
            self.lib.write(due.params[i], x)
        step.run(due.grads, nows, lent=due.params)
        step.result.measured = step.measured
        step.converted = ()
        for i, master in step.masters:
            self.lib.write(due.params[i], master)
        for slot, t in zip(step.slots, rates.t, strict=True):
            slot.step = t
        self.furthest = max(self.furthest, *rates.t)
        return rates


def _firsts(api: Api, step: SlotStep, new: Sequence[int], rates: StepScalars) -> Iterator[FirstStep]:
    """Yield the first steps of these tensors, given by their indices."""
    measured = step.result.stats() if new else []
    for i in new:
        plan, one = step.planned[i].plan, step.planned[i]
        kinds = is_misplaced_vector(plan.h, plan.shape), not api.has_blocks and is_unsplit_matrix(plan.h, plan.shape)
        peak = api.largest_lr(one, rates.lr[i])
        yield FirstStep(plan.name, plan.h, measured[i], rates.weight_decay[i], peak, step.loses[i], *kinds)


def in_wanted_storage(storage_plan: StoragePlan, p: Array, slot: Slot | None) -> tuple[Slot, Array | None]:
    """Return a slot in its wanted storage, and the weights if they change with it. Nothing is changed yet."""
    if slot is not None and storage_plan.is_plain(slot.arrays):
        return slot, None
    arrays = {} if slot is None else dict(slot.arrays)
    storage_plan.convert_state([(p, arrays)])
    weights = storage_plan.lib.copy(p) if storage_plan.is_low else p
    converted = weights if storage_plan.convert_weights(p, arrays, weights) else None
    if slot is not None:
        alike = arrays.keys() == slot.arrays.keys() and all(x is slot.arrays[key] for key, x in arrays.items())
        return slot if alike else replace(slot, arrays=arrays), converted
    for field, stored in storage_plan.dtype_per_field.items():
        if stored.by_layout:
            name = storage_plan.plan.name
            warn(f"{field!r} of {name!r} is stored in {stored.dtype} instead of 8 bits: {stored.why}.")
    return Slot(arrays, shape=storage_plan.plan.shape), converted
