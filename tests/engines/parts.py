"""Tensors in parts, each stepped by an engine of its own that stops at the rule's requests, as on several ranks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Barrier
from typing import Any

import numpy as np
import torch
from engines.worlds import Job, mapped, numbers, on_host, stored

from layerwise import engines
from layerwise.drivers import OtherRanks
from layerwise.rules.requests import ModelSquares

PATIENCE = 300 if torch.cuda.is_available() else 20  # seconds, in which kernels may have to be compiled first


@dataclass(frozen=True)
class Cut:
    """A dimension, and where it is cut; or none, and everybody has all."""

    dim: int | None
    at: tuple[int, ...] = ()

    def parts(self, array: np.ndarray, n: int) -> list[np.ndarray]:
        if self.dim is None:
            return [array.copy() for _ in range(n)]
        return [part.copy() for part in np.split(array, self.at, self.dim)]


class Meeting:
    """Where those who hold parts meet: everybody's sums, added for everybody."""

    def __init__(self, n: int, cuts: list[Cut]) -> None:
        self.cuts, self.rounds = cuts, 0
        self._barrier, self._told = Barrier(n, timeout=PATIENCE), [None] * n

    def seat(self, i: int) -> Any:
        return Seat(self, i)

    def total(self, i: int, questions: Any, sums: Any) -> np.ndarray:
        self._told[i] = (list(questions), numbers(sums))
        self._barrier.wait()
        everybody = list(self._told)
        self._barrier.wait()
        self.rounds += i == 0
        asked = [[(question.job, question.request, question.dims) for question in told[0]] for told in everybody]
        assert asked.count(asked[0]) == len(asked), "not everybody asks the same"
        return self._completed(everybody, i)

    def made(self, i: int, wholes: Any) -> list[Any]:
        """What the works make of everybody's parts together, of which each has its own back."""
        self._told[i] = list(wholes)
        self._barrier.wait()
        everybody = list(self._told)
        self._barrier.wait()
        found = []
        for k, own in enumerate(wholes):
            cut, parts = self.cuts[own.job], [told[k].whole.terms for told in everybody]
            if cut.dim is None:
                found.append(own.whole.work(own.whole.terms))
            elif isinstance(own.whole.terms, torch.Tensor):
                done = own.whole.work(torch.cat(parts, cut.dim))
                found.append(done.split([part.shape[cut.dim] for part in parts], cut.dim)[i])
            else:
                found.append(np.split(own.whole.work(np.concatenate(parts, cut.dim)), cut.at, cut.dim)[i])
        return found

    def _completed(self, everybody: Any, i: int) -> np.ndarray:
        spread = [np.split(sums, np.cumsum([question.length for question in asked])[:-1]) for asked, sums in everybody]
        asked, own = everybody[i]
        total = [
            np.sum([told[k] for told in spread], axis=0)
            if self.cuts[question.job].dim in question.dims
            else spread[i][k]
            for k, question in enumerate(asked)
        ]
        of_model = [k for k, question in enumerate(asked) if question.request is ModelSquares]
        model_sum = sum(total[k] for k in of_model)
        joined = np.concatenate([model_sum if k in of_model else part for k, part in enumerate(total)] or [own])
        assert joined.shape == own.shape
        return joined


@dataclass
class Seat(OtherRanks):
    meeting: Meeting
    i: int

    def announce(self, stepper: str, buckets: Any = ()) -> None:
        """The engines may differ here: what they ask is compared."""

    def add_up(self, questions: Any, sums: Any) -> Any:
        total = self.meeting.total(self.i, questions, sums)
        return torch.from_numpy(total).to(sums.device) if isinstance(sums, torch.Tensor) else total

    def work_on_wholes(self, wholes: Any) -> Any:
        return self.meeting.made(self.i, wholes)


def in_parts(job: Job, cut: Cut, n: int) -> list[Job]:
    """What each of n holds of a job."""
    grown = job.rule.shapes(job.h, tuple(size + 2 for size in job.p.shape))
    states = []
    for array, shape in zip(job.state, grown, strict=True):
        kept = array is not None and cut.dim is not None and shape[cut.dim] == job.p.shape[cut.dim] + 2
        parts = [None] * n if array is None else (cut if kept else Cut(None)).parts(array, n)
        states.append(parts)
    n_along = tuple(n if d == cut.dim else 1 for d in range(job.p.ndim))
    job = replace(job, h=job.h.for_shards(job.p.shape, n_along, replicas=1))
    columns = zip(cut.parts(job.p, n), cut.parts(job.g, n), zip(*states, strict=True), strict=True)
    return [replace(job, p=p, g=g, state=type(job.state)(*state)) for p, g, state in columns]


def step_parts(engine: Any, per_seat: list[list[Job]], shapes: list[Any], cuts: list[Cut], array: Any) -> Meeting:
    """Everybody steps the parts that are theirs, at the same time, in place."""
    meeting = Meeting(len(per_seat), cuts)

    def seated(i: int) -> None:
        jobs = [mapped(job, array) for job in per_seat[i]]
        made = [
            engines.Job(
                job.rule, job.h, job.p, job.state, job.block_dims, shape, 1 if cut.dim is None else len(per_seat), cut
            )
            for job, shape, cut in zip(jobs, shapes, cuts, strict=True)
        ]
        prepared = engine.prepare(made)
        with np.errstate(all="ignore"):
            prepared.step([job.g for job in jobs], [job.now for job in jobs], None, meeting.seat(i))
        for job, stepped in zip(per_seat[i], jobs, strict=True):
            fetch(job, stepped)

    with ThreadPoolExecutor(len(per_seat)) as pool:
        for done in [pool.submit(seated, i) for i in range(len(per_seat))]:
            done.result(timeout=PATIENCE + 10)
    return meeting


def stepping_in_parts(engine: Any, n: int, cuts: list[Cut], array: Any) -> Any:
    """Return a function that steps jobs in n parts, by an engine, and joins what has become of them."""

    def step(jobs: list[Job]) -> None:
        whole = [mapped(job, on_host) for job in jobs]
        per_seat = [*zip(*(in_parts(job, cut, n) for job, cut in zip(whole, cuts, strict=True)), strict=True)]
        step_parts(engine, per_seat, [job.p.shape for job in whole], cuts, array)
        for job, *parts in zip(jobs, *per_seat, strict=True):
            for old, *new in zip(stored(job), *map(stored, parts), strict=True):
                together = joined(tuple(old.shape), new)
                old[...] = array(together) if isinstance(old, torch.Tensor) else together

    return step


def fetch(job: Job, stepped: Job) -> None:
    """What has become of a job whose arrays may have been copied to a device."""
    for array, one in zip(stored(job), stored(stepped), strict=True):
        if isinstance(one, torch.Tensor) and one.device.type != "cpu":
            array[...] = numbers(one)


def check(whole: Job, parts: list[Job], eps: float) -> None:
    """The parts' arrays, joined where they were cut and the same with everybody where they were not.

    Weight decay may nearly cancel the gradient in a momentum of one number, which then has the error of what was
    cancelled. Nothing else has more room than its own size gives.
    """
    cancelled = np.abs(numbers(whole.p)).max(initial=0) / 1000
    fields = ["p", *(field for field, x in whole.state._asdict().items() if x is not None)]
    for field, expected, *found in zip(fields, stored(whole), *map(stored, parts), strict=True):
        expected = numbers(expected)
        together = joined(expected.shape, [numbers(one) for one in found])
        may_cancel = field == "exp_avg" and expected.size == 1 and len(parts) == 1
        room = eps * (max(np.abs(expected).max(initial=0), cancelled if may_cancel else 0) + 1e-30)
        np.testing.assert_allclose(together, expected, rtol=eps, atol=room)


def joined(shape: Any, found: list[np.ndarray]) -> np.ndarray:
    if all(one.shape == shape for one in found):
        for one in found[1:]:
            np.testing.assert_array_equal(numbers(one), numbers(found[0]))
        return found[0]
    dim = next(d for d in range(len(shape)) if any(one.shape[d] != shape[d] for one in found))
    return np.concatenate(found, dim)


class Failing(OtherRanks):
    """Somebody who leaves at a certain round."""

    def __init__(self, left: int) -> None:
        self.left = left

    def announce(self, stepper: str, buckets: Any = ()) -> None:
        """That changes nothing about leaving."""

    def add_up(self, questions: Any, sums: Any) -> Any:
        if self.left == 0:
            raise ZeroDivisionError
        self.left -= 1
        return sums
