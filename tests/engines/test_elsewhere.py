"""Jobs whose parameters the compiled engine cannot reach go to another, which of them it is found out once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import case_of
from engines.worlds import WORLDS, make_job, mapped, needed, now_of, numbers

from layerwise import engines
from layerwise.engines import compiled
from layerwise.engines.distributor import prepare
from layerwise.errors import EngineError

pytestmark = needed
WORLD = WORLDS[1]
CASE = case_of("Lamb")
H = CASE.hyper(lr=0.1, weight_decay=0.1)


class Odd(torch.Tensor):
    """A tensor that may lie anywhere."""


class Recorded:
    """The rule, which remembers what it was given to prepare."""

    def __init__(self):
        self.prepared = []

    def prepare(self, jobs, layouts=None):
        self.prepared.append([job.p for job in jobs])
        return WORLD.engine_of_rule.prepare(jobs)

    def __getattr__(self, name):
        return getattr(WORLD.engine_of_rule, name)


def jobs_of(kinds, h=H, shape=(6, 4)):
    """A job for each kind: one that is "here", one "there", or a bare shape without elements, there."""
    made = []
    for i, kind in enumerate(kinds):
        job = mapped(make_job(CASE, h, (0, 3) if kind == "empty" else shape, (), i), WORLD.array)
        p = job.p if kind in ("here", "empty") else job.p.as_subclass(Odd)
        made.append((engines.Job(job.rule, job.h, p, job.state, job.block_dims), job.g))
    return [job for job, _ in made], [g for _, g in made]


def stepped(prepared, jobs, grads, steps=2):
    for t in range(1, steps + 1):
        prepared.step(grads, [now_of(job.h, t) for job in jobs])
    return [numbers(job.p.as_subclass(torch.Tensor)) for job in jobs], prepared.stats()


def distributed(otherwise, jobs):
    return prepare((compiled.CompiledEngine(), otherwise), jobs)


@pytest.mark.parametrize("bound", [None, 0.5])
@pytest.mark.parametrize(
    "kinds",
    [["there"], ["there", "there"], ["here"], ["empty"], ["here", "there", "here"], ["there", "here", "empty"]],
    ids=str,
)
def test_jobs_that_are_elsewhere_are_another_engines(kinds, bound):
    """Where all of them wait for one another, one that is elsewhere takes all along."""
    h = CASE.hyper(lr=0.1, weight_decay=0.1, max_grad_norm=bound)
    otherwise = Recorded()
    jobs, grads = jobs_of(kinds, h)
    prepared = distributed(otherwise, jobs)
    ours, stats = stepped(prepared, jobs, grads, 3)
    theirs, grads = jobs_of(kinds, h)
    expected, wanted = stepped(WORLD.engine_of_rule.prepare(theirs), theirs, grads, 3)
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert [set(one) for one in stats] == [set(one) for one in wanted]
    there = [p for some in otherwise.prepared for p in some]
    together = bound is not None and "there" in kinds
    assert [any(job.p is p for p in there) for job in jobs] == [together or kind == "there" for kind in kinds]
    assert len(otherwise.prepared) == ("there" in kinds)


def test_no_jobs_are_the_first_engines():
    otherwise = Recorded()
    distributed(otherwise, []).step([], [])
    assert otherwise.prepared == []


def test_a_job_declined_for_its_gradient_is_asked_about_again():
    """A gradient out of reach is the rule's; the next one is not."""
    otherwise = Recorded()
    [job], [g] = jobs_of(["here"])
    prepared = distributed(otherwise, [job])
    now = now_of(job.h, 1)
    prepared.step([g.as_subclass(Odd)], [now])
    assert len(otherwise.prepared) == 1
    prepared.step([g], [now])
    assert isinstance(prepared.stats()[0], compiled.Measured)
    assert len(otherwise.prepared) == 1
    with pytest.raises(engines.Changed):
        prepared.step([g.as_subclass(Odd)], [now])


def test_nothing_is_touched_where_one_of_several_engines_finds_a_change():
    for kinds in (["there", "here"], ["here", "there"]):
        jobs, grads = jobs_of(kinds)
        prepared = distributed(WORLD.engine_of_rule, jobs)
        nows = [now_of(job.h, 1) for job in jobs]
        prepared.step(grads, nows)
        jobs[1].p.data = jobs[1].p.data.clone()
        before = [numbers(job.p.as_subclass(torch.Tensor)) for job in jobs]
        with pytest.raises(engines.Changed):
            prepared.step(grads, nows)
        for job, old in zip(jobs, before, strict=True):
            np.testing.assert_array_equal(numbers(job.p.as_subclass(torch.Tensor)), old)


def test_without_another_engine_it_says_why():
    jobs, _ = jobs_of(["here", "there"])
    with pytest.raises(EngineError, match=r"compiled engine does not take .* the parameter is not an array .* \(Odd\)"):
        prepare((compiled.CompiledEngine(),), jobs)


def test_engines_of_today_count_no_steps():
    jobs, _ = jobs_of(["here"])
    assert not compiled.CompiledEngine().prepare(jobs).counts
    assert not WORLD.engine_of_rule.prepare(jobs).counts
    assert not distributed(WORLD.engine_of_rule, jobs).counts
