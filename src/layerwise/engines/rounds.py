"""The compiled engine in rounds: it stops at every request, so that other ranks add their sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from layerwise.drive import Others, Request, TensorRequest, dims_of, once_of
from layerwise.engines import Job
from layerwise.engines.programs import program_for
from layerwise.rules.asks import Mean, MeanSquare, ModelSum, Now, Squares, Sum

REQUESTS: dict[str, type[Request]] = {one.__name__: one for one in (Sum, Mean, MeanSquare, Squares)}


class Rounds:
    """Jobs laid out as a batch that stops."""

    def __init__(
        self, native: Any, jobs: Sequence[Job], grads: list[Any], forms: list[Any], numbers: Callable[..., Any]
    ) -> None:
        self._jobs = list(jobs)
        self.batch: Any = native.Batch(self._jobs, grads, forms, numbers, stops=True)
        self._sums = native.Sum
        self._requests: list[list[TensorRequest]] = []  # of each round

    def step(self, grads: list[Any], nows: list[Now], places: Any, others: Others) -> bool:
        """Carry out the jobs, unless they differ from those this was made for, or lie elsewhere than in `places`."""
        if not self.batch.begin(self._jobs, grads, nows, places):
            return False
        try:
            self._measure(others)
            self.batch.apply()
        finally:
            self.batch.leave()
        return True

    def _measure(self, others: Others) -> None:
        others.announce("the compiled engine")
        more, number = self.batch.measure(), 0
        while True:
            if number == len(self._requests):
                self._requests.append([self._tensor_request(*each) for each in self.batch.requests()])
            sums = self.batch.sums()
            sums[:] = others.add_up(self._requests[number], sums)
            number += 1
            if not more or not self.batch.measure():
                return

    def _tensor_request(self, i: int, what: Any, total: int, length: int) -> TensorRequest:
        job = self._jobs[i]
        request = self._request(job, what, total)
        dims = dims_of(request, len(job.p.shape), job.block_dims)
        return TensorRequest(i, type(request), dims, length, once=once_of(request))

    def _request(self, job: Job, what: Any, total: int) -> Request:
        """Return the rule's request for these sums."""
        sums = self._sums
        rows, cols = getattr(job.h, "factored", None) or ((), ())
        named = {sums.ROWS: cols, sums.COLS: rows, sums.G: rows + cols, sums.R: rows}
        if what in named:
            return Mean(None, named[what], once=cols if what == sums.R else ())
        if what == sums.TOTAL:
            return REQUESTS[program_for(job).totals[total]](None)
        return ModelSum(None) if what == sums.MODEL else Squares(None)
