"""The compiled engine in rounds: it stops at every request, so that other ranks add their sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from layerwise.drive import Others, TensorRequest
from layerwise.engines import Job
from layerwise.engines.programs import requests_of, tensor_request
from layerwise.rules.asks import Now


class Rounds:
    """Jobs laid out as a batch that stops."""

    def __init__(
        self, native: Any, jobs: Sequence[Job], grads: list[Any], forms: list[Any], numbers: Callable[..., Any]
    ) -> None:
        self._jobs = list(jobs)
        self.batch: Any = native.Batch(self._jobs, grads, forms, numbers, stops=True)
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

    def _tensor_request(self, i: int, stage: int, which: int, length: int) -> TensorRequest:
        job = self._jobs[i]
        return tensor_request(i, job, requests_of(job)[stage][which], length)
