"""Tensors that step together: their jobs, prepared by engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from functools import partial
from typing import Any

from layerwise.core.library import Array
from layerwise.core.plan import Plan
from layerwise.engines import KEPT, Engine, Job
from layerwise.engines.distributor import Distributed, prepare
from layerwise.names import Name
from layerwise.rules.asks import Now


def keep(kept: dict[Any, Any], key: Any, prepared: Any, tensors: Iterable[Sized]) -> None:
    """Keep what is prepared for some of these tensors as the last taken: one for each tensor, and a few more."""
    kept.pop(key, None)
    kept[key] = prepared
    if len(kept) > KEPT and len(kept) > KEPT + sum(map(len, tensors)):
        del kept[next(iter(kept))]


class Turn:
    """A prepared step of some tensors, given their plans and jobs in the same order."""

    def __init__(
        self,
        engines: Sequence[Engine],
        plans: Sequence[Plan],
        jobs: Sequence[Job],
        layouts: Any = None,
    ) -> None:
        self.plans: Sequence[Any] = list(plans)
        self.jobs, self._prepare = list(jobs), partial(prepare, engines)
        self.whole = all(plan.itself for plan in {id(plan.held): plan for plan in plans}.values())
        self.prepared = self._before = self._prepare(self.jobs, layouts)

    def prepare_again(self, jobs: Sequence[Job]) -> None:
        """Prepare the jobs for other numbers in their settings."""
        self.jobs, self._before = list(jobs), self._measured
        self.prepared = self._prepare(self.jobs, self.prepared.layouts)

    @property
    def _measured(self) -> Distributed:
        return self.prepared if self.prepared.stepped else self._before

    def of_jobs(self, grads: Sequence[Array], nows: Sequence[Now]) -> tuple[Sequence[Array], Sequence[Now]]:
        """Return the gradient and the numbers of each job."""
        if self.whole:
            return grads, nows
        each = [(g, now, one) for g, now, plan in zip(grads, nows, self.plans, strict=True) for one in plan.held]
        return [one.view(g) for g, _, one in each], [now for _, now, _ in each]

    def measured(self) -> Iterator[list[Mapping[str, Any]]]:
        """Yield, for each plan, what its jobs measured in the last step, if there was one."""
        found = iter(self._measured.stats())
        yield from ([next(found) for _ in plan.held] for plan in (self.plans if self._measured.stepped else ()))

    def stepped_by(self) -> Iterator[str]:
        """Yield, for each plan, the engine that took its last step, if there was one."""
        found = iter(self._measured.steppers)
        each = ([next(found) for _ in plan.held] for plan in (self.plans if self._measured.stepped else ()))
        yield from (" and ".join(dict.fromkeys(names)) for names in each)

    def stats(self, read: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict) -> Iterator[list[tuple[Name, Any]]]:
        """Yield, for each plan, the names of its tensors with the measurements of the last step, if there was one."""
        each = zip(self.plans, self.measured(), strict=False)
        yield from (list(plan.measured(map(read, own))) for plan, own in each)
