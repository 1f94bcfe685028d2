"""Jobs whose parameters the compiled engine cannot reach go to another, which of them it is found out once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import case_of
from engines.worlds import WORLDS, make_job, mapped, needed, now_of, numbers

from layerwise import engines
from layerwise.engines import compiled
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

    def prepare(self, jobs):
        self.prepared.append([job.p for job in jobs])
        return WORLD.engine_of_rule.prepare(jobs)


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


@pytest.mark.parametrize("kinds", [["there"], ["there", "there"], ["there", "empty"]], ids=str)
def test_jobs_that_are_all_elsewhere_are_handed_over_at_once(kinds):
    otherwise = Recorded()
    jobs, _ = jobs_of(kinds)
    prepared = compiled.CompiledEngine(otherwise).prepare(jobs)
    assert not isinstance(prepared, compiled.PreparedCompiled)
    assert [[p is job.p for p, job in zip(found, jobs, strict=True)] for found in otherwise.prepared] == [
        [True] * len(jobs)
    ]


@pytest.mark.parametrize("kinds", [["here"], ["here", "there"], ["there", "here"], ["empty"], []], ids=str)
def test_others_are_not(kinds):
    otherwise = Recorded()
    prepared = compiled.CompiledEngine(otherwise).prepare(jobs_of(kinds)[0])
    assert isinstance(prepared, compiled.PreparedCompiled)
    assert otherwise.prepared == []


@pytest.mark.parametrize("bound", [None, 0.5])
@pytest.mark.parametrize("kinds", [["here", "there", "here"], ["there", "here", "empty"]], ids=str)
def test_jobs_that_are_elsewhere_in_part_are_told_apart_once(kinds, bound, monkeypatch):
    h = CASE.hyper(lr=0.1, weight_decay=0.1, max_grad_norm=bound)
    otherwise = Recorded()
    jobs, grads = jobs_of(kinds, h)
    asked = []
    of = compiled._out_of_reach
    monkeypatch.setattr(compiled, "_out_of_reach", lambda name, array: asked.append(name) or of(name, array))
    prepared = compiled.CompiledEngine(otherwise).prepare(jobs)
    ours, stats = stepped(prepared, jobs, grads, 1)
    once = len(asked)
    ours, stats = stepped(prepared, jobs, grads, 3)
    assert len(asked) == once
    theirs, grads = jobs_of(kinds, h)
    engine = WORLD.engine_of_rule.prepare(theirs)
    stepped(engine, theirs, grads, 1)
    expected, wanted = stepped(engine, theirs, grads, 3)
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert [set(one) for one in stats] == [set(one) for one in wanted]
    [there] = otherwise.prepared
    together = bound is not None
    assert [any(job.p is p for p in there) for job in jobs] == [together or kind == "there" for kind in kinds]


def test_without_another_engine_it_says_why():
    jobs, grads = jobs_of(["here", "there"])
    prepared = compiled.CompiledEngine(None).prepare(jobs)
    with pytest.raises(EngineError, match=r"the parameter is not an array .* \(Odd\)"):
        stepped(prepared, jobs, grads)


def test_engines_of_today_count_no_steps():
    jobs, _ = jobs_of(["here"])
    assert not compiled.CompiledEngine(None).prepare(jobs).counts
    assert not WORLD.engine_of_rule.prepare(jobs).counts
