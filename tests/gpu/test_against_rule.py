"""The GPU engine against the rule: random options, shapes, dtypes, blocks and layouts, whole and in parts."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from cases import KERNELED, case_of
from draws import draws
from engines.test_against_rule import compare, given_jobs, well_posed
from engines.test_rounds import Cut, Failing, check, drawn_jobs, in_parts, step_parts
from engines.worlds import EPS, bits, copied, make_job, mapped, new_gradient, now_of
from gpu.world import GPU, SMALL, had
from hypothesis import assume, given

from layerwise import engines
from layerwise.engines.gpu import engine
from layerwise.engines.gpu.engine import GpuEngine

cases = pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
ENGINE = GpuEngine(None, SMALL)


@pytest.mark.every
@cases
@draws(8)
@given(given_jobs())
def test_any_job(case, drawn):
    seed, g_scale, tensors = drawn
    h = case.hyper(**well_posed(case.drawn(seed)))
    found = [
        (make_job(case, h, smaller(shape), leading(blocks), own, dtypes, layout), dtypes, layout)
        for shape, blocks, dtypes, number, own in tensors
        for layout in ["transposed" if number < 5 else "plain"]
    ]
    taken = [one for one in found if not declined(one[0])]
    assume(taken)
    compare(GPU, h, [job for job, *_ in taken], g_scale, [kind for _, *kind in taken])


def leading(blocks):
    return (0,) if blocks else ()


def declined(job, shape=None):
    mine = mapped(job, GPU.array)
    return engine.declined(engines.Job(mine.rule, mine.h, mine.p, mine.state, mine.block_dims, shape))


@cases
@pytest.mark.parametrize("shape", [(), (5,), (7, 3)], ids=str)
def test_bounds_above_zero_leave_what_is_past_the_end_alone(case, shape):
    h, dtypes = case.hyper(lr=0.1, max_grad_value=(0.05, None)), ("float32",) * 3
    compare(GPU, h, [make_job(case, h, shape, (), 0, dtypes, "plain")], 1.0, [(dtypes, "plain")])


def smaller(shape):
    """The same with as many dimensions, and few enough elements for an interpreter."""
    while prod(shape) > 700:
        longest = max(shape)
        shape = tuple(-(-n // 2) if n == longest else n for n in shape)
    return shape


@pytest.mark.every
@cases
@draws(3)
@given(drawn_jobs())
def test_parts_make_the_whole(case, drawn):
    seed, n, tensors = drawn
    h = case.hyper(**well_posed(case.drawn(seed)))
    jobs = [make_job(case, h, shape, leading(blocks), own, dtypes) for shape, blocks, _, dtypes, own in tensors]
    assume(not any(map(declined, jobs)))
    cuts = [cut for _, _, cut, _, _ in tensors]
    for t in (1, 2):
        jobs = [replace(job, now=now_of(h, t), g=new_gradient(job.p, t + 7, str(job.g.dtype))) for job in jobs]
        parts = [in_parts(job, cut, n) for job, cut in zip(jobs, cuts, strict=True)]
        per_seat = [list(seat) for seat in zip(*parts, strict=True)]
        GPU.engine().step(alone := [mapped(job, GPU.array) for job in jobs])
        step_parts(ENGINE, per_seat, [job.p.shape for job in jobs], cuts, GPU.array)
        room = 8 * max(EPS[name] for *_, dtypes, _ in tensors for name in dtypes)
        for own, part in zip(alone, parts, strict=True):
            check(own, part, room)


@cases
def test_who_holds_nothing_is_asked_as_well(case):
    """One has all blocks of the only tensor, the other none."""
    job, cut = make_job(case, case.hyper(), (4, 3, 2), (0,), 0), Cut(0, (0,))
    parts = in_parts(job, cut, 2)
    GPU.engine().step([alone := mapped(job, GPU.array)])
    step_parts(ENGINE, [[part] for part in parts], [job.p.shape], [cut], GPU.array)
    check(alone, parts, 8 * EPS["float32"])


def rounds_of(case, more=0):
    """Return how often sums are exchanged at the defaults, with so many more requests."""
    return case.exchanges(more - sum(name in case.busy for name in ("max_grad_norm", "max_grad_norm_per_tensor")))


@cases
def test_rounds_are_as_few_as_the_rule_has(case):
    jobs = [make_job(case, case.hyper(), shape, (), i) for i, shape in enumerate([(20, 13), (5,), (), (4, 3, 2)])]
    alone, parted = [mapped(copied(job), GPU.array) for job in jobs], [copied(job) for job in jobs]
    GPU.engine().step(alone)
    meeting = step_parts(ENGINE, [parted], [job.p.shape for job in jobs], [Cut(None)] * len(jobs), GPU.array)
    assert meeting.rounds == rounds_of(case)
    for one, other in zip(alone, parted, strict=True):
        check(one, [other], 4 * EPS["float32"])


@cases
@pytest.mark.parametrize("busy", [False, True])
def test_nothing_is_written_before_the_last_answer(case, busy):
    bounds = had(case, max_grad_norm=1.0, max_grad_norm_per_tensor=1.0) if busy else {}
    h = case.hyper(**bounds)
    jobs = [mapped(make_job(case, h, shape, (), i), GPU.array) for i, shape in enumerate([(20, 13), (5,)])]
    before = bits(jobs)
    prepared = ENGINE.prepare([engines.Job(j.rule, j.h, j.p, j.state, j.block_dims) for j in jobs])
    rounds = rounds_of(case, len(bounds))
    for stop in range(rounds):
        with pytest.raises(ZeroDivisionError):
            prepared.step([j.g for j in jobs], [j.now for j in jobs], None, Failing(stop))
        assert bits(jobs) == before
    prepared.step([j.g for j in jobs], [j.now for j in jobs], None, Failing(rounds))
    assert bits(jobs) != before


@pytest.mark.parametrize("case", [case_of(name) for name in ("Lamb", "Lars")], ids=lambda case: case.name)
def test_somebody_is_met_even_where_nothing_is_asked(case):
    job = mapped(make_job(case, case.hyper(adapt=False), (5, 3), (), 0), GPU.array)
    prepared = ENGINE.prepare([engines.Job(job.rule, job.h, job.p, job.state)])
    before = bits([job])
    with pytest.raises(ZeroDivisionError):
        prepared.step([job.g], [job.now], None, Failing(0))
    assert bits([job]) == before
