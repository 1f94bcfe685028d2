"""One step of some tensors: what it depends on, and what engines prepared for as long as nothing of that changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from functools import partial
from typing import Any, TypeVar, cast

from layerwise.core.library import Array
from layerwise.core.plan import Plan
from layerwise.engines import KEPT, Changed, Engine, Job, just_prepared
from layerwise.engines.distributor import prepare
from layerwise.engines.places import places_of
from layerwise.rules.asks import Now

T = TypeVar("T")


class Step:
    """A prepared step of some tensors, given their plans and jobs in the same order.

    It is run while `seen`, a snapshot of all that it depends on, stays the same, and then thrown away: nothing of it is
    ever mended. What changes from step to step is handed to each run. Jobs without weights are of weights that the
    caller lends to each run.
    """

    def __init__(
        self,
        seen: Any,
        engines: Sequence[Engine],
        plans: Sequence[Plan],
        params: Sequence[Array],
        jobs: Sequence[Job],
        own: Any = None,
    ) -> None:
        self._seen, self.plans, self.own = seen, plans, own  # the last is what its API has besides
        self.whole = all(plan.itself for plan in {id(plan.held): plan for plan in plans}.values())
        self._lent = any(job.p is None for job in jobs)
        # Where engines have these very arrays, they look at them themselves. Views would not follow them elsewhere.
        self._places = None if self.whole or self._lent else places_of(params)
        self.jobs, self._prepare, self._layouts = list(jobs), partial(prepare, engines), cast("Any", None)
        self.prepared: Any = None if self._lent else self._prepare(self.jobs)

    def unchanged(self, seen: Any, params: Sequence[Array]) -> bool:
        """Return True if all that it depends on is as it was, but for what engines see themselves."""
        return bool(self._seen == seen and (self._places is None or self._places.same(params)))

    def run(self, params: Sequence[Array], grads: Sequence[Array], nows: Sequence[Now]) -> Any:
        """Carry it out, and return what each job measured; or raise `Changed` as engines do, with nothing touched."""
        if not self.whole:
            grads, nows = self.of_jobs(grads, nows)
        if self._lent:
            return self._run_lent(self._with(params), grads, nows)
        (self.prepared.only or self.prepared).step(grads, nows)
        return self.prepared.stats()

    def _run_lent(self, jobs: list[Job], grads: Sequence[Array], nows: Sequence[Now]) -> Any:
        """Run jobs with arrays that are given back."""
        if self.prepared is None or not self.prepared.lend(jobs):
            self.prepared = self._prepare(jobs, self._layouts)
        try:
            self.prepared.step(grads, nows)
            self._layouts, measured = self.prepared.layouts, self.prepared.stats()
        finally:
            only = getattr(self.prepared, "only", self.prepared)
            self.prepared = only if only is not None and only.lend(None) else None
        return measured

    def _with(self, params: Sequence[Array]) -> list[Job]:
        """Return the jobs with the weights that are lent."""
        if not self.whole:
            params = [one.view(p) for p, plan in zip(params, self.plans, strict=True) for one in plan.held]
        return [job if job.p is not None else job._replace(p=p) for job, p in zip(self.jobs, params, strict=True)]

    def of_jobs(self, grads: Sequence[Array], nows: Sequence[Now]) -> tuple[Sequence[Array], Sequence[Now]]:
        """Return the gradient and the numbers of each job."""
        each = [(g, now, one) for g, now, plan in zip(grads, nows, self.plans, strict=True) for one in plan.held]
        return [one.view(g) for g, _, one in each], [now for _, now, _ in each]


def taken(step: Step | None, make: Callable[[], Step], run: Callable[[Step], T]) -> tuple[Step, T]:
    """Take a step that is unchanged, or else one that is made anew; once more anew if an engine sees a change."""
    try:
        step = make() if step is None else step
        return step, run(step)
    except Changed:
        step = make()
        with just_prepared():
            return step, run(step)


def keep(kept: dict[Any, Any], key: Any, step: Any, tensors: Iterable[Sized]) -> None:
    """Keep a step of some of these tensors as the last taken: one for each tensor, and a few more."""
    kept.pop(key, None)
    kept[key] = step
    if len(kept) > KEPT and len(kept) > KEPT + sum(map(len, tensors)):
        del kept[next(iter(kept))]
