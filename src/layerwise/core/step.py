"""One step of some tensors: everything it depends on, and what engines prepared, valid as long as nothing of that
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from copy import copy
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, TypeVar

from layerwise.core.plan import Plan
from layerwise.drivers import OtherRanks
from layerwise.engines import KEPT, ArraysChanged, Engine, Job, Stats, changed_is_error
from layerwise.engines.addresses import ArraysRecord, States, state_objects_of
from layerwise.engines.assignment import prepare
from layerwise.engines.programs import MANY, NowsByRates
from layerwise.options.by_name import Name
from layerwise.options.settings import Hyper
from layerwise.rules.requests import Array, Now, Scalar

if TYPE_CHECKING:
    from typing_extensions import Self

K = TypeVar("K")
T = TypeVar("T")
S = TypeVar("S", bound="Step")


class Snapshot:
    """Everything that a prepared step depends on, besides arrays that engines check themselves."""

    def __init__(
        self,
        settings: object,
        params: Sequence[Array] = (),
        states: States | None = None,
        arrays: Sequence[Array] = (),
        grads: Sequence[Array] | None = None,
    ) -> None:
        self.settings, self._looks = settings, ArraysRecord(list(arrays), grads)
        self._dtypes = [g.dtype for g in grads or ()]
        self.consists_of: Callable[..., bool] = state_objects_of(list(params), states or {}).same
        """Return True if the states of these parameters consist of the same objects."""

    def with_settings(self, settings: object) -> Snapshot:
        """Return the same with other settings."""
        made = copy(self)
        made.settings = settings
        return made

    def same_memory(self, arrays: Sequence[Array], grads: Sequence[Array] = ()) -> bool:
        """Return True if arrays have not moved, and gradients are of the same kinds."""
        return self._looks.same(arrays, grads) and self._dtypes == [g.dtype for g in grads]


class Step:
    """A prepared step of some tensors, given their plans and jobs in the same order.

    It is run as long as everything that it has `seen` stays the same, and is then thrown away; it is never modified.
    Numbers that change from step to step are passed to each run. Jobs without weights step weights that the caller
    lends.
    """

    def __init__(self, seen: Snapshot, engines: Sequence[Engine], plans: Sequence[Plan], jobs: Sequence[Job]) -> None:
        self.seen, self.plans, self.jobs = seen, list(plans), list(jobs)
        self.whole = all(plan.is_single_job for plan in {id(plan.held): plan for plan in plans}.values())
        self._engines, self._lent = engines, bool([job for job in jobs if job.p is None])
        self._layouts, self._measured = None, list[Stats]()  # for lent weights
        self.prepared: Any = None if self._lent else prepare(engines, self.jobs)

    def with_numbers(self, settings: object, hs: Iterable[Hyper]) -> Self | None:
        """Return a step of the same tensors with other numbers in the settings of its jobs, if engines allow it."""
        layouts = self.prepared.layouts
        if layouts is None:
            return None
        made = copy(self)
        made.jobs = [job._replace(h=h) for job, h in zip(self.jobs, hs, strict=True)]
        made.seen, made.prepared = self.seen.with_settings(settings), prepare(self._engines, made.jobs, layouts)
        return made

    def run(
        self,
        grads: Sequence[Array],
        nows: Sequence[Now],
        skip: Array | None = None,
        others: OtherRanks | None = None,
        lent: Sequence[Array] = (),
    ) -> None:
        """Run the step; or raise `ArraysChanged` like engines, before anything is written."""
        if not self.whole:
            grads, nows = self.inputs_per_job(grads, nows)
        if self._lent:
            self._run_lent(self._with(lent), grads, nows)
        else:
            (self.prepared.only or self.prepared).step(grads, nows, skip, others)

    def _run_lent(self, jobs: list[Job], grads: Sequence[Array], nows: Sequence[Now]) -> None:
        """Run jobs with weights that are given back afterwards."""
        if self.prepared is None or not self.prepared.lend(jobs):
            self.prepared = prepare(self._engines, jobs, self._layouts)
        try:
            self.prepared.step(grads, nows)
            self._layouts, self._measured = self.prepared.layouts, self.prepared.stats()
        finally:
            only = getattr(self.prepared, "only", self.prepared)
            self.prepared = only if only is not None and only.lend(None) else None

    def _with(self, params: Sequence[Array]) -> list[Job]:
        """Return the jobs with the lent weights."""
        if not self.whole:
            params = [one.view(p) for p, plan in zip(params, self.plans, strict=True) for one in plan.held]
        return [job if job.p is not None else job._replace(p=p) for job, p in zip(self.jobs, params, strict=True)]

    def inputs_per_job(self, grads: Sequence[Array], nows: Sequence[Now]) -> tuple[Sequence[Array], Sequence[Now]]:
        """Return the gradient and the numbers of each job."""
        if self.whole:
            return grads, nows
        each = [(g, now, one) for g, now, plan in zip(grads, nows, self.plans, strict=True) for one in plan.held]
        return [one.view(g) for g, _, one in each], [now for _, now, _ in each]

    @property
    def measured(self) -> Sequence[Stats]:
        """The measurements of each job in the last run."""
        if self._lent:
            return self._measured
        return self.prepared.stats() if self.prepared.has_stepped else []

    def engine_per_plan(self) -> list[str]:
        """Return, for each plan, the engine that took its last step, or nothing before the first run."""
        each = iter(self.prepared.engine_per_job if self.prepared.has_stepped else ())
        plans = self.plans if self.prepared.has_stepped else ()
        return [" and ".join(dict.fromkeys(islice(each, len(plan.held)))) for plan in plans]

    def stats(self, read: Callable[[Stats], Stats]) -> Iterator[list[tuple[Name, dict[str, Array]]]]:
        """Yield, for each plan, the names of its tensors with their measurements, if there was a run."""
        measured = self.measured
        each = map(read, measured)
        yield from (list(plan.measured(each)) for plan in self.plans if measured)


class StepNumbers:
    """The numbers of tensors that step together, `counts` of them in each group with its own settings and rates.

    An engine computes coefficients once for each object that it gets.
    """

    def __init__(self, hs: Sequence[Hyper], sizes: Sequence[int]) -> None:
        self._hs, self._sizes = hs, sizes
        known = {None if h.follows_step else h.beta2_of(1) for h in hs}
        self._by_step = len(known) > 1 or any(h.follows_step for h in hs)
        self._beta2 = next(iter(known), None)

    def nows_of_tensors(
        self, t: Sequence[int], lr: Sequence[Scalar], weight_decay: Sequence[Scalar], g_scale: Scalar = 1.0
    ) -> Sequence[Now]:
        """Return the numbers of each tensor, given the step that it takes, and the rates of each group."""
        if not t:
            return []
        if self._by_step or t.count(t[0]) < len(t):
            return self._one_by_one(t, lr, weight_decay, g_scale)
        first, n = Now(t[0], lr[0], weight_decay[0], g_scale, self._beta2), len(lr)
        floats = n > 1 and {*map(type, lr), *map(type, weight_decay)} == {float}
        if n == 1 or (floats and lr.count(lr[0]) == n and weight_decay.count(weight_decay[0]) == n):
            return [first] * len(t)
        if floats and n >= MANY:
            return NowsByRates(first, self._of_each(lr), self._of_each(weight_decay))
        return self._of_each([Now(t[0], *rates, g_scale, self._beta2) for rates in zip(lr, weight_decay, strict=True)])

    def _of_each(self, of_groups: Sequence[T]) -> list[T]:
        return list(chain.from_iterable(map(repeat, of_groups, self._sizes)))

    def _one_by_one(
        self, t: Sequence[int], lr: Sequence[Scalar], weight_decay: Sequence[Scalar], scale: Scalar
    ) -> list[Now]:
        found: dict[tuple[object, ...], Now] = {}
        beta2: dict[tuple[object, ...], Scalar | None] = {}  # a user's function is called once for each step
        nows = []
        for own, (h, *rates) in zip(t, self._of_each([*zip(self._hs, lr, weight_decay, strict=True)]), strict=True):
            key = id(h), own, *rates
            if key not in found:
                if key[:2] not in beta2:
                    beta2[key[:2]] = h.beta2_of(own)
                found[key] = Now(own, rates[0], rates[1], scale, beta2[key[:2]])
            nows.append(found[key])
        return nows


def run_or_remake(step: S | None, make: Callable[[], S], run: Callable[[S], T]) -> tuple[S, T]:
    """Run an unchanged step, or else a new one; if an engine notices a change, make another new one, once."""
    try:
        step = make() if step is None else step
        return step, run(step)
    except ArraysChanged:
        step = make()
        with changed_is_error():
            return step, run(step)


def keep_latest(kept: dict[K, T], key: K, step: T, tensors: Iterable[Sized]) -> None:
    """Keep a step of some of these tensors as the last taken: one for each tensor, and a few more."""
    kept.pop(key, None)
    kept[key] = step
    if len(kept) > KEPT and len(kept) > KEPT + sum(map(len, tensors)):
        del kept[next(iter(kept))]
