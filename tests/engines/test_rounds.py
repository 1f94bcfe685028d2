"""Engines that stop at the yields: tensors in parts, each part stepped by somebody else, against the whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from cases import KERNELED, case_of
from draws import draws
from engines.test_against_rule import well_posed
from engines.worlds import (
    EPS,
    WORLDS,
    Job,
    bits,
    copied,
    make_job,
    mapped,
    needed,
    new_gradient,
    now_of,
    numbers,
    stored,
    worlds,
)
from hypothesis import example, given
from hypothesis import strategies as st

from layerwise import engines
from layerwise.drive import Others
from layerwise.engines import compiled
from layerwise.engines.distributor import prepare
from layerwise.errors import EngineError
from layerwise.rules.asks import ModelSum

pytestmark = needed
cases = pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
STEPS = 2
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

    def _completed(self, everybody: Any, i: int) -> np.ndarray:
        spread = [np.split(sums, np.cumsum([question.length for question in asked])[:-1]) for asked, sums in everybody]
        asked, own = everybody[i]
        total = [
            np.sum([told[k] for told in spread], axis=0)
            if self.cuts[question.job].dim in question.dims
            else spread[i][k]
            for k, question in enumerate(asked)
        ]
        of_model = [k for k, question in enumerate(asked) if question.request is ModelSum]
        model_sum = sum(total[k] for k in of_model)
        joined = np.concatenate([model_sum if k in of_model else part for k, part in enumerate(total)] or [own])
        assert joined.shape == own.shape
        return joined


@dataclass
class Seat(Others):
    meeting: Meeting
    i: int

    def announce(self, stepper: str, buckets: Any = ()) -> None:
        """The engines may differ here: what they ask is compared."""

    def add_up(self, questions: Any, sums: Any) -> Any:
        total = self.meeting.total(self.i, questions, sums)
        return torch.from_numpy(total).to(sums.device) if isinstance(sums, torch.Tensor) else total


def in_parts(job: Job, cut: Cut, n: int) -> list[Job]:
    """What each of n holds of a job."""
    grown = job.rule.shapes(job.h, tuple(size + 2 for size in job.p.shape))
    states = []
    for array, shape in zip(job.state, grown, strict=True):
        kept = array is not None and cut.dim is not None and shape[cut.dim] == job.p.shape[cut.dim] + 2
        parts = [None] * n if array is None else (cut if kept else Cut(None)).parts(array, n)
        states.append(parts)
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
        prepared.step([job.g for job in jobs], [job.now for job in jobs], None, meeting.seat(i))
        for job, stepped in zip(per_seat[i], jobs, strict=True):
            fetch(job, stepped)

    with ThreadPoolExecutor(len(per_seat)) as pool:
        for done in [pool.submit(seated, i) for i in range(len(per_seat))]:
            done.result(timeout=PATIENCE + 10)
    return meeting


def fetch(job: Job, stepped: Job) -> None:
    """What has become of a job whose arrays may have been copied to a device."""
    for array, one in zip(stored(job), stored(stepped), strict=True):
        if isinstance(one, torch.Tensor) and one.device.type != "cpu":
            array[...] = numbers(one)


@st.composite
def drawn_jobs(draw: Any) -> Any:
    n = draw(st.integers(1, 3))
    tensors = []
    for _ in range(draw(st.integers(1, 3))):
        if tensors and draw(st.booleans()):  # alike, for engines that take such together
            tensors.append((*tensors[-1][:2], draw(st.sampled_from((tensors[-1][2], Cut(None)))), *tensors[-1][3:]))
            continue
        shape = tuple(draw(st.lists(st.sampled_from((0, 1, 2, 3, 5, 8, 17, 40)), max_size=3)))
        blocks = draw(st.sampled_from([(), *((d,) for d in range(len(shape)))]))
        dim = draw(st.sampled_from([None, *range(len(shape))]))
        at = () if dim is None else tuple(sorted(draw(st.integers(0, shape[dim])) for _ in range(n - 1)))
        p = draw(st.sampled_from(("float32", "float32", "float64", "bfloat16")))
        state = draw(st.sampled_from(("float64",) if p == "float64" else ("float32", "float32", "bfloat16")))
        tensors.append((shape, blocks, Cut(dim, at), (p, p, state), draw(st.integers(0, 1000))))
    return draw(st.integers(0, 10**6)), n, tensors


@pytest.mark.every
@worlds
@cases
@pytest.mark.parametrize("fast", [True, False], ids=["compiled", "rule"])
@draws(60)
@example((7236, 1, [((), (), Cut(None), ("float64", "float64", "float64"), 13)]))  # decay cancels a gradient
@given(drawn_jobs())
def test_parts_make_the_whole(case, world, fast, drawn):
    seed, n, tensors = drawn
    h = case.hyper(**well_posed(case.drawn(seed)))
    jobs = [make_job(case, h, shape, blocks, own, dtypes) for shape, blocks, _, dtypes, own in tensors]
    cuts = [cut for _, _, cut, _, _ in tensors]
    engine = compiled.CompiledEngine() if fast else world.engine_of_rule
    for t in range(1, STEPS + 1):
        jobs = [replace(job, now=now_of(h, t), g=new_gradient(job.p, t + 7, str(job.g.dtype))) for job in jobs]
        parts = [in_parts(job, cut, n) for job, cut in zip(jobs, cuts, strict=True)]
        per_seat = [list(seat) for seat in zip(*parts, strict=True)]
        world.engine().step(alone := [mapped(job, world.array) for job in jobs])
        step_parts(engine, per_seat, [job.p.shape for job in jobs], cuts, world.array)
        # With a norm of all, the least exact of the tensors decides.
        eps = max(EPS[name] for *_, dtypes, _ in tensors for name in dtypes)
        # NumPy adds up what does not lie in a row one after the other, in float32: 680 squares are 1e-6 off.
        # And the number of a layer is a sum of squares of gradients that were divided by such sums.
        room = (8 if fast else 128) * eps
        for own, part in zip(alone, parts, strict=True):
            check(own, part, room)


def check(whole: Job, parts: list[Job], eps: float) -> None:
    """The parts' arrays, joined where they were cut and the same with everybody where they were not.

    Weight decay may nearly cancel the gradient in a momentum of one number, which then has the error of what was
    cancelled. Nothing else has more room than its own size gives.
    """
    cancelled = np.abs(numbers(whole.p)).max(initial=0) / 1000
    fields = ["p", *(field for field, x in whole.state._asdict().items() if x is not None)]
    for field, expected, *found in zip(fields, stored(whole), *map(stored, parts), strict=True):
        expected = numbers(expected)
        joined = joined_to(expected.shape, [numbers(one) for one in found])
        may_cancel = field == "exp_avg" and expected.size == 1 and len(parts) == 1
        room = eps * (max(np.abs(expected).max(initial=0), cancelled if may_cancel else 0) + 1e-30)
        np.testing.assert_allclose(joined, expected, rtol=eps, atol=room)


def joined_to(shape: Any, found: list[np.ndarray]) -> np.ndarray:
    if all(one.shape == shape for one in found):
        for one in found[1:]:
            np.testing.assert_array_equal(one, found[0])
        return found[0]
    dim = next(d for d in range(len(shape)) if any(one.shape[d] != shape[d] for one in found))
    return np.concatenate(found, dim)


@worlds
@cases
@pytest.mark.parametrize("fast", [True, False], ids=["compiled", "rule"])
@pytest.mark.parametrize("shape", [(4,), (4, 3, 5)])
def test_a_part_without_blocks_asks_what_the_others_do(case, world, fast, shape):
    h = case.hyper(**case.busy)
    job, cut = make_job(case, h, shape, (0,), 1), Cut(0, (0,))
    parts = in_parts(job, cut, 2)
    world.engine().step([mapped(job, world.array)])
    step_parts(
        compiled.CompiledEngine() if fast else world.engine_of_rule,
        [[one] for one in parts],
        [shape],
        [cut],
        world.array,
    )
    check(job, parts, 8 * EPS["float32"])


@worlds
@cases
@pytest.mark.parametrize("fast", [True, False], ids=["compiled", "rule"])
def test_alone_in_rounds_is_the_step(case, world, fast):
    """With nobody else there, stopping changes nothing, and the rounds are as few as the rule has."""
    h = case.hyper()
    jobs = [make_job(case, h, shape, (), i) for i, shape in enumerate([(300, 70), (5,), (), (4, 3, 2)])]
    alone, parted = [copied(job) for job in jobs], [copied(job) for job in jobs]
    engine = compiled.CompiledEngine() if fast else world.engine_of_rule
    world.engine().step([mapped(job, world.array) for job in alone])
    cuts = [Cut(None)] * len(jobs)
    meeting = step_parts(engine, [parted], [job.p.shape for job in jobs], cuts, world.array)
    assert meeting.rounds == case.exchanges()
    if fast:
        assert bits(parted) == bits(alone)


@worlds
@cases
@pytest.mark.parametrize("fast", [True, False], ids=["compiled", "rule"])
@pytest.mark.parametrize("busy", [False, True])
def test_nothing_is_written_before_the_last_answer(case, world, fast, busy):
    clipping = {"max_grad_norm": 1.0, "max_grad_norm_per_tensor": 1.0}
    options = {k: x for k, x in clipping.items() if busy and k in case.options}
    h = case.hyper(**options)
    jobs = [make_job(case, h, shape, (), i) for i, shape in enumerate([(300, 70), (5,)])]
    before = bits(jobs)
    mine = [mapped(job, world.array) for job in jobs]
    engine = compiled.CompiledEngine() if fast else world.engine_of_rule
    prepared = engine.prepare([engines.Job(j.rule, j.h, j.p, j.state, j.block_dims) for j in mine])
    rounds = case.exchanges(len(options))
    for stop in range(rounds):
        with pytest.raises(ZeroDivisionError):
            prepared.step([j.g for j in mine], [j.now for j in mine], None, Failing(stop))
        assert bits(jobs) == before
    prepared.step([j.g for j in mine], [j.now for j in mine], None, Failing(rounds))
    assert bits(jobs) != before


class Failing(Others):
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


class Noting(Failing):
    """Somebody who writes down whose sums come, and in which order."""

    def __init__(self) -> None:
        super().__init__(99)
        self.seen: list[list[int]] = []

    def add_up(self, questions: Any, sums: Any) -> Any:
        self.seen.append([question.job for question in questions])
        return super().add_up(questions, sums)


@cases
@pytest.mark.parametrize("fast", [True, False], ids=["compiled", "rule"])
def test_sums_come_in_the_order_of_the_jobs(case, fast):
    """Others may have stacked what they hold in another way."""
    world, others = WORLDS[1], Noting()
    shapes = [(3, 4), (5,), (3, 4), (5,)]
    jobs = [mapped(make_job(case, case.hyper(), shape, (), i), world.array) for i, shape in enumerate(shapes)]
    engine = compiled.CompiledEngine() if fast else world.engine_of_rule
    prepared = engine.prepare([engines.Job(j.rule, j.h, j.p, j.state) for j in jobs])
    prepared.step([j.g for j in jobs], [j.now for j in jobs], None, others)
    assert {*others.seen[0]} == ({0, 1, 2, 3} if case.rounds else set())
    assert all(jobs == sorted(jobs) for jobs in others.seen)


@cases
@pytest.mark.needs("adapt")
@pytest.mark.parametrize("fast", [True, False], ids=["compiled", "rule"])
def test_somebody_is_met_even_where_nothing_is_asked(case, fast):
    h = case.hyper(**({"adapt": False} if "adapt" in case.options else {"clip_threshold": None}))
    job = make_job(case, h, (5, 3), (), 0)
    engine = compiled.CompiledEngine() if fast else WORLDS[0].engine_of_rule
    prepared = engine.prepare([engines.Job(job.rule, job.h, job.p, job.state)])
    before = bits([job])
    with pytest.raises(ZeroDivisionError):
        prepared.step([job.g], [job.now], None, Failing(0))
    assert bits([job]) == before


def test_a_whole_of_other_dimensions_is_refused():
    job = make_job(case_of("Lamb"), case_of("Lamb").hyper(), (5, 3), (), 0)
    prepared = prepare((compiled.CompiledEngine(),), [engines.Job(job.rule, job.h, job.p, job.state, (), (5,), 2)])
    with pytest.raises(EngineError, match="other dimensions"):
        prepared.step([job.g], [job.now], None, Failing(9))
