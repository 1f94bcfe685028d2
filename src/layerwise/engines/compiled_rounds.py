"""The compiled engine in rounds: it stops at every request, so that other ranks add their sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from layerwise.drivers import OtherRanks, SharedRequest
from layerwise.engines import Job
from layerwise.engines.programs import KernelNumbers, OfStep, requests_by_stage
from layerwise.rules.requests import Array, ModelSquares


class BatchInRounds:
    """Jobs laid out as a batch that stops."""

    def __init__(
        self,
        native: ModuleType,
        jobs: Sequence[Job],
        grads: list[Array],
        forms: list[tuple[object, ...]],
        numbers: KernelNumbers,
    ) -> None:
        self._jobs = list(jobs)
        rounds = [stage for stage in requests_by_stage(jobs) if stage]
        self._requests = [[one.request for one in each] for each in rounds]
        asked = [[(one.request.job, one.stage, one.which, one.request.length) for one in each] for each in rounds]
        self.batch: Any = native.Batch(self._jobs, grads, forms, numbers, asked)

    def begin(self, grads: list[Array], nows: list[OfStep], places: object) -> bool:
        """Use the batch for a step, until it is left, unless the jobs differ from those it was made for, or have moved
        from `places`.
        """
        return bool(self.batch.begin(self._jobs, grads, nows, places))

    def step(self, others: OtherRanks) -> None:
        others.announce("the compiled engine")
        asked = False
        for requests, sums in self._each():
            asked, sums[:] = True, others.add_up(requests, sums)
        if not asked:
            others.add_up([], self.batch.sums())
        self.batch.apply()

    def step_in_parts(self) -> Iterator[list[float]]:
        """Measure up to the sums over the model, or to the end, and yield those sums of each job; then carry out the
        jobs, if there were none.
        """
        each = self._each()
        yield next(([*sums] for requests, sums in each if requests[0].request is ModelSquares), [])
        self.batch.apply()

    def _each(self) -> Iterator[tuple[list[SharedRequest], Array]]:
        """Measure, and yield the requests of each round with their sums, to be completed in place."""
        for requests in self._requests:
            self.batch.measure()
            yield requests, self.batch.sums()
        self.batch.measure()
