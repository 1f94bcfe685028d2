"""A job goes to the first engine that does not decline it, with a reason if none is left, and then stays there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import case_of
from engines.worlds import WORLDS, bits, copied, make_job, mapped, needed, now_of, numbers

from layerwise import engines
from layerwise.engines import compiled
from layerwise.engines.assignment import prepare
from layerwise.errors import EngineError
from layerwise.storage import Format, JobFormats
from layerwise.storage.index import part_of

pytestmark = needed
NUMPY, WORLD = WORLDS
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


def jobs_of(kinds, h=H):
    """A job for each kind: one that is "here", one "there", and here one without elements, or one without a bound."""
    made = []
    for i, kind in enumerate(kinds):
        own = h.settled(max_grad_norm=None) if kind == "free" else h
        job = mapped(make_job(CASE, own, (0, 3) if kind == "empty" else (6, 4), (), i), WORLD.array)
        p = job.p.as_subclass(Odd) if kind == "there" else job.p
        made.append((engines.Job(job.rule, job.h, p, job.state, job.block_dims), job.g))
    return [job for job, _ in made], [g for _, g in made]


def weights(jobs):
    return [numbers(job.p.as_subclass(torch.Tensor)) for job in jobs]


def distributed(otherwise, jobs):
    return prepare((compiled.CompiledEngine(), otherwise), jobs)


@pytest.mark.parametrize("bound", [None, 0.5])
@pytest.mark.parametrize(
    "kinds",
    [
        [],
        ["there", "there"],
        ["here"],
        ["empty"],
        ["here", "there", "here"],
        ["there", "here", "empty"],
        ["there", "here", "free"],
    ],
    ids=str,
)
def test_jobs_out_of_reach_are_another_engines_with_all_that_wait_for_them(kinds, bound):
    h, otherwise = CASE.hyper(lr=0.1, weight_decay=0.1, max_grad_norm=bound), Recorded()
    (jobs, grads), (theirs, _) = jobs_of(kinds, h), jobs_of(kinds, h)
    ready, rule = distributed(otherwise, jobs), WORLD.engine_of_rule.prepare(theirs)
    for t in (1, 2, 3):
        for one in (ready, rule):
            one.step(grads, [now_of(h, t)] * len(jobs))
    for one, other in zip(weights(jobs), weights(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    for one, other in zip(ready.stats(), rule.stats(), strict=True):
        assert one.keys() == other.keys()
        for key, x in one.items():
            np.testing.assert_allclose(numbers(x).ravel(), numbers(other[key]).ravel(), rtol=1e-5)
    together = bound is not None and "there" in kinds
    there = {id(p) for some in otherwise.prepared for p in some}
    assert [id(job.p) in there for job in jobs] == [together or kind == "there" for kind in kinds]
    assert len(otherwise.prepared) == ("there" in kinds)
    assert not ready.counts


def test_tensors_of_several_devices_that_wait_for_one_another_are_another_engines():
    apart, (jobs, _) = Recorded(), jobs_of(["here", "here"], CASE.hyper(lr=0.1, max_grad_norm=0.5))
    apart.groups = lambda jobs: list(map(id, jobs))
    with pytest.raises(EngineError, match="on several devices"):
        prepare((apart,), jobs)
    prepare((apart, WORLD.engine_of_rule), jobs)
    assert not apart.prepared


def test_a_job_declined_for_its_gradient_is_offered_again():
    otherwise, ([job], [g]) = Recorded(), jobs_of(["here"])
    ready, now = distributed(otherwise, [job]), now_of(H, 1)
    ready.step([g.as_subclass(Odd)], [now])
    assert len(otherwise.prepared) == 1
    assert ready.only is None
    ready.step([g], [now])
    assert isinstance(ready.stats()[0], compiled.JobMeasurements)
    assert ready.only is not None
    assert len(otherwise.prepared) == 1
    with pytest.raises(engines.ArraysChanged):
        ready.step([g.as_subclass(Odd)], [now])


@pytest.mark.parametrize("kinds", [["there", "here"], ["here", "there"]], ids=str)
def test_nothing_is_touched_if_one_of_several_engines_finds_a_change(kinds):
    jobs, grads = jobs_of(kinds)
    ready, nows = distributed(WORLD.engine_of_rule, jobs), [now_of(H, 1)] * 2
    ready.step(grads, nows)
    jobs[1].p.data = jobs[1].p.data.clone()
    before = weights(jobs)
    with pytest.raises(engines.ArraysChanged):
        ready.step(grads, nows)
    np.testing.assert_array_equal(weights(jobs), before)


class Leaving:
    """An engine that counts steps itself, and declines jobs from its first step on."""

    name, counts, left = "an engine that leaves", True, False

    def reasons_to_decline(self, jobs, given=None):
        return ["it has left" if self.left else ""] * len(jobs)

    def groups(self, jobs):
        return [None] * len(jobs)

    def prepare(self, jobs, layouts=None):
        return self

    def step(self, *given):
        self.left = True
        raise engines.ArraysChanged


def test_only_a_step_that_another_engine_can_count_is_handed_on_to_it():
    """The caller counted by the first engine, so it prepares again."""
    [job], [g] = jobs_of(["here"])
    before, now = weights([job]), now_of(H, 1)
    ready = prepare((Leaving(), WORLD.engine_of_rule), [job])
    assert ready.counts
    with pytest.raises(engines.ArraysChanged):
        ready.step([g], [now._replace(t=engines.DeviceStepCount(torch.tensor(0)))])
    np.testing.assert_array_equal(weights([job]), before)
    prepare((Leaving(), WORLD.engine_of_rule), [job]).step([g], [now])
    assert not np.array_equal(weights([job]), before)


SCATTERED = JobFormats((Format(key=(1, 2)), *(None,) * 3), part_of((9, 4), {0: (0, 1, 2, 4, 6, 8)}))
STRANGE = {
    "on the device": lambda job: replace(job, skip=torch.tensor(False)),
    "the gradient is not an array": lambda job: replace(job, g=job.g.to("meta")),
    "tracked by autograd": lambda job: replace(job, now=job.now._replace(lr=torch.tensor(0.1, requires_grad=True))),
    r"the parameter is not an array .* \(Odd\)": lambda job: replace(job, p=Odd(job.p)),
    "its part of the tensor is not contiguous": lambda job: replace(job, storage=SCATTERED),
}


@pytest.mark.parametrize("reason", STRANGE)
def test_without_another_engine_it_says_why_and_changes_nothing(reason):
    jobs = [mapped(make_job(CASE, H, (6, 4), (), i), WORLD.array) for i in range(3)]
    before = bits(jobs)
    with pytest.raises(EngineError, match=f"compiled engine cannot step.*{reason}"):
        WORLD.engine().step([*jobs[:2], STRANGE[reason](jobs[2])])
    assert bits(jobs) == before


def _read_only(job):
    job.p.flags.writeable = False
    return job


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: _read_only(make_job(CASE, H, (6, 4), (), 1)), "a job that the engine does not take"),
        (lambda: (job := make_job(CASE, H, (6, 4), (), 1)) and replace(job, g=job.g.astype(">f4")), "the gradient is"),
        (
            lambda: make_job(
                case_of("Adafactor"),
                case_of("Adafactor").hyper(lr=0.1, factored=((0, 2, 4, 6, 8), (1, 3, 5, 7, 9))),
                (2,) * 10,
                (),
                1,
            ),
            "more dimensions",
        ),
    ],
    ids=["read-only", "swapped bytes", "dimensions not in a row"],
)
def test_arrays_that_are_not_plain_are_left_to_the_rule(made, why):
    job = made()
    before = bits([job])
    with pytest.raises(EngineError, match=why):
        NUMPY.engine().step([job])
    assert bits([job]) == before
    if not job.p.flags.writeable:
        return
    theirs = copied(job)
    NUMPY.engine(required=False).step([job])
    NUMPY.rule.step([theirs])
    assert bits([job]) == bits([theirs])


@pytest.mark.parametrize("name", ["NovoGrad", "Came"])
def test_state_that_was_freed_is_noticed_where_jobs_go_to_other_engines(name):
    """An engine that takes another job from now on prepares again, and would find freed memory as it was."""
    case = case_of(name)
    made = [
        mapped(make_job(one, one.hyper(), (8, 9), (), i), lambda a: WORLD.array(a).clone())
        for i, one in enumerate((case_of("Lamb"), case))
    ]
    jobs, grads = [engines.Job(job.rule, job.h, job.p, job.state) for job in made], [job.g for job in made]
    prepared, nows = distributed(WORLD.engine_of_rule, jobs), [now_of(job.h, 1) for job in made]
    prepared.step([torch._neg_view(grads[0].clone()), grads[1]], nows)  # which the rule takes
    for array in jobs[1].state:
        if array is not None:
            array.untyped_storage().resize_(0)
    with pytest.raises(engines.ArraysChanged):
        prepared.step(grads, nows)
