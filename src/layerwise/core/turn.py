"""Tensors that step together: their jobs, prepared by engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

from layerwise.core.library import Array
from layerwise.core.plan import Plan
from layerwise.drive import Others
from layerwise.engines import Changed, Job, Prepared
from layerwise.names import Name
from layerwise.rules.asks import Now

Prepare = Callable[[Sequence[Job], Any], Prepared]
MOST_TURNS = 16  # different sets of tensors whose steps are kept prepared, besides one for each tensor


def keep(kept: dict[Any, Any], key: Any, prepared: Any, tensors: Iterable[Sized]) -> None:
    """Keep a prepared step of some of these tensors as the last taken, and no more of them than the limit."""
    kept.pop(key, None)
    kept[key] = prepared
    if len(kept) > MOST_TURNS and len(kept) > MOST_TURNS + sum(map(len, tensors)):
        del kept[next(iter(kept))]


class Turn:
    """A prepared step of some tensors, given their plans and jobs in the same order."""

    def __init__(self, plans: Sequence[Plan], jobs: Sequence[Job], prepare: Prepare, layouts: Any = None) -> None:
        self.plans, self.jobs, self._prepare = list(plans), list(jobs), prepare
        self.whole = all(plan.itself for plan in self.plans)
        self.prepared = self._measured = prepare(self.jobs, layouts)  # and the one that took the last step

    def prepare_again(self, jobs: Sequence[Job]) -> None:
        """Prepare the jobs for arrays that have moved, or for other numbers in their settings."""
        self.jobs = list(jobs)
        self.prepared = self._prepare(self.jobs, self.prepared.layouts)

    def check(self, grads: Sequence[Array], nows: Sequence[Now]) -> None:
        """Raise `Changed` if `step` would."""
        self.prepared.check(*self._of_jobs(grads, nows))

    def step(
        self, grads: Sequence[Array], nows: Sequence[Now], skip: Array | None = None, others: Others | None = None
    ) -> None:
        """Step all tensors, or raise with none of them changed."""
        if not self.whole:
            grads, nows = self._of_jobs(grads, nows)
        self.prepared.step(grads, nows, skip, others)
        self._measured = self.prepared

    def ahead(self, grads: Sequence[Array], nows: Sequence[Now]) -> Iterator[list[float]]:
        """Step in three parts, of which the last writes (`Prepared.ahead`); raise `Changed` where that cannot be."""
        if self.prepared.ahead is None:
            raise Changed
        yield from self.prepared.ahead(*self._of_jobs(grads, nows))
        self._measured = self.prepared

    def _of_jobs(self, grads: Sequence[Array], nows: Sequence[Now]) -> tuple[Sequence[Array], Sequence[Now]]:
        """Return the gradient and the numbers of each job."""
        if self.whole:
            return grads, nows
        each = [(g, now, one) for g, now, plan in zip(grads, nows, self.plans, strict=True) for one in plan.held]
        return [one.view(g) for g, _, one in each], [now for _, now, _ in each]

    def stats(self, read: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict) -> Iterator[list[tuple[Name, Any]]]:
        """Yield, for each plan, the names of its tensors with the measurements of the last step, if there was one."""
        found = self._measured.stats()
        measured = map(read, found)
        yield from (list(plan.measured(measured)) for plan in (self.plans if found else ()))
