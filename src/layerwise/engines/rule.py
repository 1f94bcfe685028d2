"""The rule itself, applied to arrays of any library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

from layerwise.drive import Run, local
from layerwise.engines import Job, Stats
from layerwise.rules.asks import Array, Asking, Stepped


class RuleEngine:
    """Reads stored arrays into the dtype of the arithmetic, drives the rule, and writes the results back.

    `read(array, like)` gives `array` in the dtype in which a step on `like` is computed; `write(stored, new)` rounds
    `new` into `stored`. Tensors of more than `slice_size` elements are taken in slices of that size: to the driver
    they are tensors cut in pieces, whoever has done the cutting.
    """

    def __init__(
        self,
        xp: Any,
        read: Callable[[Array, Array], Array],
        write: Callable[[Array, Array], None],
        slice_size: int | None = None,
    ) -> None:
        self._xp, self._read, self._write, self._slice_size = xp, read, write, slice_size

    def step(self, jobs: Sequence[Job]) -> list[Stats]:
        cuts = [self._cut(tuple(job.p.shape)) for job in jobs]
        runs = [self._run(job, *cut) for job, cut in zip(jobs, cuts, strict=True)]
        finished = zip(jobs, cuts, local(self._xp, runs), strict=True)
        return [self._store(job, *cut, done) for job, cut, done in finished]

    def _cut(self, shape: tuple[int, ...]) -> tuple[int, list[slice]]:
        """A dimension, and the slices along it in which a tensor of this shape is taken."""
        wanted = -(-prod(shape) // self._slice_size) if self._slice_size else 1
        if wanted <= 1:
            return 0, [slice(None)]
        dim = next((d for d, n in enumerate(shape) if n >= wanted), shape.index(max(shape)))
        length, n = shape[dim], min(wanted, shape[dim])
        return dim, [slice(i * length // n, (i + 1) * length // n) for i in range(n)]

    def _run(self, job: Job, dim: int, slices: Sequence[slice]) -> Run:
        rules = tuple(self._start(job, dim, cut) for cut in slices)
        return Run(rules, tuple(job.p.shape), job.block_dims, job.h.asks_of_model, dim)

    def _start(self, job: Job, dim: int, cut: slice) -> Asking[Stepped]:
        # A generator of its own, so that the copies `read` makes live no longer than the work on their tensor.
        p, g, *state = (self._read(array, job.p) if array is not None else None for array in _taken(job, dim, cut))
        now, remembered = job.now, type(job.state)(*state)
        stepped: Stepped = yield from job.rule.step(self._xp, p, g, remembered, job.h, now)
        return stepped

    def _store(self, job: Job, dim: int, slices: Sequence[slice], done: Sequence[Stepped]) -> Stats:
        for cut, stepped in zip(slices, done, strict=True):
            p, _, *state = _taken(job, dim, cut)
            for stored, new in zip((p, *state), (stepped.p, *stepped.state), strict=True):
                if stored is not None:
                    self._write(stored, new if job.skip is None else self._xp.where(job.skip, stored, new))
        # Slices of one block were told the same; where the cut runs between blocks, each knows only of its own.
        apart = dim in job.block_dims and len(done) > 1
        return {
            key: self._joined([one.stats[key] for one in done], dim) if apart else x for key, x in done[0].stats.items()
        }

    def _joined(self, values: Sequence[Array], dim: int) -> Array:
        return values[0] if isinstance(values[0], float) else self._xp.concat(values, dim)


def _taken(job: Job, dim: int, cut: slice) -> Iterator[Array]:
    """The job's p, g and state along this slice; statistics with size 1 there belong to every slice."""
    place = (slice(None),) * dim + (cut,)
    for array in (job.p, job.g, *job.state):
        whole = cut == slice(None) or array is None or array.shape[dim] != job.p.shape[dim]
        yield array if whole else array[place]
