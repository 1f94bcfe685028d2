"""The rule itself, applied to arrays of any library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from layerwise.drive import Run, local
from layerwise.engines import Job, Stats
from layerwise.rules.asks import Array, Asking, Stepped


class RuleEngine:
    """Reads stored arrays into the dtype of the arithmetic, drives the rule, and writes the results back.

    `read(array, like)` gives `array` in the dtype in which a step on `like` is computed; `write(stored, new)` rounds
    `new` into `stored`.
    """

    def __init__(self, xp: Any, read: Callable[[Array, Array], Array], write: Callable[[Array, Array], None]) -> None:
        self._xp, self._read, self._write = xp, read, write

    def step(self, jobs: Sequence[Job]) -> list[Stats]:
        runs = [Run(self._start(job), job.p.shape, job.block_dims, bool(job.h.max_grad_norm)) for job in jobs]
        return [self._store(job, done) for job, done in zip(jobs, local(self._xp, runs), strict=True)]

    def _start(self, job: Job) -> Asking[Stepped]:
        # A generator of its own, so that the copies `read` makes live no longer than the work on their tensor.
        p, g = self._read(job.p, job.p), self._read(job.g, job.p)
        state = type(job.state)(*(None if s is None else self._read(s, job.p) for s in job.state))
        stepped: Stepped = yield from job.rule.step(self._xp, p, g, state, job.h, job.now)
        return stepped

    def _store(self, job: Job, done: Stepped) -> Stats:
        self._write(job.p, done.p)
        for stored, new in zip(job.state, done.state, strict=True):
            if stored is not None:
                self._write(stored, new)
        return done.stats
