"""Every engine stops at a rule's requests, so that other processes can add their sums, and writes only after the last.

That parts make the whole is tried with random jobs (`test_jobs.py`).
"""

from __future__ import annotations

import pytest
from cases import KERNELED, case_of
from engines.parts import Cut, Failing, check, in_parts, step_parts
from engines.worlds import EPS, WORLDS, bits, copied, make_job, mapped, needed

from layerwise import engines
from layerwise.engines import compiled
from layerwise.engines.assignment import prepare
from layerwise.errors import EngineError

pytestmark = needed
cases = pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
SHAPES = [(30, 13), (5,), (), (4, 3, 2)]


ENGINES = ["compiled-numpy", "compiled-torch", "rule-numpy", "rule-torch", "gpu"]


@pytest.fixture(params=ENGINES)
def one(request):
    """An engine, and the world of its arrays."""
    if request.param == "gpu":
        pytest.importorskip("triton", reason="kernels need Triton")
        request.getfixturevalue("faithful_interpreter")
        from gpu.world import GPU, SMALL

        from layerwise.engines.gpu import GpuEngine

        return GpuEngine(sizes=SMALL), GPU
    name, _, of = request.param.partition("-")
    world = next(world for world in WORLDS if world.name == of)
    return compiled.CompiledEngine() if name == "compiled" else world.engine_of_rule, world


def prepared(one, jobs):
    engine, world = one
    mine = [mapped(job, world.array) for job in jobs]
    ready = engine.prepare([engines.Job(j.rule, j.h, j.p, j.state, j.block_dims) for j in mine])
    return mine, lambda others: ready.step([j.g for j in mine], [j.now for j in mine], None, others)


@cases
def test_without_other_ranks_the_step_is_the_whole_one_in_the_rule_s_rounds(case, one):
    engine, world = one
    jobs = [make_job(case, case.hyper(**case.busy), shape, (), i) for i, shape in enumerate(SHAPES)]
    alone, parted = [mapped(copied(job), world.array) for job in jobs], [copied(job) for job in jobs]
    world.engine().step(alone)
    meeting = step_parts(engine, [parted], SHAPES, [Cut(None)] * len(jobs), world.array)
    assert meeting.rounds == case.exchanges()
    for own, other in zip(alone, parted, strict=True):
        check(own, [other], 8 * EPS["float32"])
    assert engine.name != "the compiled engine" or bits(parted) == bits(alone)


@cases
@pytest.mark.parametrize("shape", [(4,), (4, 3, 5)], ids=str)
def test_a_part_without_blocks_asks_as_the_others_do(case, one, shape):
    engine, world = one
    job, cut = make_job(case, case.hyper(**case.busy), shape, (0,), 1), Cut(0, (0,))
    parts = in_parts(job, cut, 2)
    world.rule.step([alone := mapped(job, world.copy if world.name == "numpy" else world.array)])
    step_parts(engine, [[part] for part in parts], [shape], [cut], world.array)
    check(alone, parts, 16 * EPS["float32"])


@cases
@pytest.mark.parametrize("clipped", [False, True])
def test_nothing_is_written_before_the_last_answer(case, one, clipped):
    clips = ("max_grad_norm", "max_grad_norm_per_tensor") if clipped else ()
    h = case.hyper(**case.busy, **{name: 1.0 for name in clips if name in case.options})
    jobs, step = prepared(one, [make_job(case, h, shape, (), i) for i, shape in enumerate(SHAPES[:2])])
    before, rounds = bits(jobs), case.exchanges(len([x for x in clips if x in case.options]))
    for stop in range(rounds):
        with pytest.raises(ZeroDivisionError):
            step(Failing(stop))
        assert bits(jobs) == before
    step(Failing(rounds))
    assert bits(jobs) != before


@cases
@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("one", ENGINES[:2], indirect=True)
def test_a_step_in_three_parts_is_the_whole_one_and_only_the_third_writes(case, one, clipped):
    engine, world = one
    clips = [name for name in ("max_grad_norm", "max_grad_norm_per_tensor") if clipped and name in case.options]
    h, of_model = case.hyper(**dict.fromkeys(clips, 0.5)), "max_grad_norm" in clips
    jobs = [make_job(case, h, shape, (0,) if len(shape) > 1 else (), i) for i, shape in enumerate(SHAPES)]
    jobs, alone = ([mapped(copied(job), world.array) for job in jobs] for _ in range(2))
    world.engine().step(alone)
    before, parts = bits(jobs), []
    for some in (jobs[:1], jobs[1:]):
        ready = engine.prepare([engines.Job(j.rule, j.h, j.p, j.state, j.block_dims) for j in some])
        steps = ready.step_in_parts([j.g for j in some], [j.now for j in some])
        next(steps)
        parts.append((steps, next(steps)))
    assert [len(model) for _, model in parts] == ([1, len(SHAPES) - 1] if of_model else [0, 0])
    total = sum(x for _, model in parts for x in model)
    for _, model in parts:
        model[:] = [total] * of_model
    assert bits(jobs) == before
    for steps, _ in parts:
        next(steps, None)
    assert bits(jobs) == bits(alone)


@pytest.mark.parametrize("one", ["compiled-torch"], indirect=True)
def test_weights_that_have_moved_since_they_were_measured_are_not_written(one):
    engine, world = one
    job = mapped(make_job(case_of("Lamb"), case_of("Lamb").hyper(), (5, 3), (), 0), world.array)
    steps = engine.prepare([engines.Job(job.rule, job.h, job.p, job.state)]).step_in_parts([job.g], [job.now])
    next(steps), next(steps)
    job.p.data = job.p.data.clone()
    before = bits([job])
    with pytest.raises(engines.ArraysChanged):
        next(steps, None)
    assert bits([job]) == before


@pytest.mark.parametrize("case", [case_of("Lamb"), case_of("Lars")], ids=lambda case: case.name)
def test_other_ranks_are_met_even_without_requests(case, one):
    jobs, step = prepared(one, [make_job(case, case.hyper(adapt=False), (5, 3), (), 0)])
    before = bits(jobs)
    with pytest.raises(ZeroDivisionError):
        step(Failing(0))
    assert bits(jobs) == before


def test_a_whole_of_other_dimensions_is_refused():
    job = make_job(case_of("Lamb"), case_of("Lamb").hyper(), (5, 3), (), 0)
    ready = prepare((compiled.CompiledEngine(),), [engines.Job(job.rule, job.h, job.p, job.state, (), (5,), 2)])
    with pytest.raises(EngineError, match="other dimensions"):
        ready.step([job.g], [job.now], None, Failing(9))
