"""What is kept from step to step: tables for a few layouts of gradients, compiled kernels, memory in use."""

from __future__ import annotations

import gc

import pytest
import torch
from cases import case_of
from engines.worlds import bits, stored
from gpu.world import ENGINE, cases, copies, given, jobs_of, near, step
from gpu.world import prepared as prepared_jobs

from layerwise import engines
from layerwise.engines.gpu import prepared, step_params
from layerwise.errors import EngineError

SHAPES = [(12, 10), (7,)]


def prepare(jobs):
    """The jobs on the engine alone, without the distributor around it."""
    return ENGINE.prepare([given(job) for job in jobs])


def odd(g):
    return torch.empty(g.numel() + 1, dtype=g.dtype, device=g.device)[1:].view(g.shape).copy_(g)


@cases
def test_gradients_that_lie_in_two_ways_in_turns_are_laid_out_once_each(case, monkeypatch):
    jobs = jobs_of(case, SHAPES, lr=0.1)
    others = copies(jobs)
    ready, theirs, laid = prepare(jobs), prepared_jobs(others), []
    lay_out = prepared.PreparedOnGpu._lay_out
    monkeypatch.setattr(prepared.PreparedOnGpu, "_lay_out", lambda self, *a: (laid.append(self), lay_out(self, *a))[1])
    for t in range(4):
        step(ready, jobs, grads=[odd(job.g) if t % 2 else job.g for job in jobs])
        step(theirs, others)
        near(jobs, others)
        for one, other in zip(ready.stats(), theirs.stats(), strict=True):
            assert {key: pytest.approx(x, rel=1e-5) for key, x in dict(one).items()} == dict(other)
    assert laid.count(ready) == 2


@pytest.mark.parametrize("which", ["p", "exp_avg_sq"])
def test_weights_and_state_that_moved_are_noticed_before_anything_is_written(which):
    """What lies there now may be another's."""
    [job] = jobs = jobs_of(case_of("Lamb"), SHAPES[:1])
    ready = prepare(jobs)
    step(ready, jobs)
    array = job.p if which == "p" else job.state.exp_avg_sq
    kept, before = array.data, array.clone()
    array.data = before.clone()
    with pytest.raises(engines.ArraysChanged):
        step(ready, jobs)
    assert torch.equal(kept, before)


@pytest.fixture
def capturing(monkeypatch):
    """Begin a recording, or end it."""
    state = [False]
    for module in (step_params, prepared):
        monkeypatch.setattr(module, "capturing", lambda device: state[0])
    return lambda on: state.__setitem__(0, on)


@cases
@pytest.mark.parametrize("new", ["nothing before", "a scale", "a skip", "a dtype"])
def test_nothing_is_compiled_in_a_recording(case, new, capturing):
    jobs = jobs_of(case, SHAPES, lr=0.1)
    ready, counts = prepare(jobs), [torch.zeros((), dtype=torch.int64, device=job.p.device) for job in jobs]
    nows = [job.now._replace(t=engines.DeviceStepCount(count)) for job, count in zip(jobs, counts, strict=True)]
    if new != "nothing before":
        step(ready, jobs, nows)
    before = bits(jobs)
    scaled = [now._replace(g_scale=2.0) for now in nows] if new == "a scale" else nows
    skip = torch.zeros((), dtype=torch.bool, device=jobs[0].p.device) if new == "a skip" else None
    grads = [job.g.bfloat16() if new == "a dtype" else job.g for job in jobs]
    capturing(True)
    with pytest.raises(EngineError, match="a CUDA graph cannot capture this step before a step like it has run"):
        step(ready, jobs, scaled, skip, grads)
    assert bits(jobs) == before
    capturing(False)
    step(ready, jobs, scaled, skip, grads)  # with the parameters of the refused one
    assert {int(count) for count in counts} == {1 + (new != "nothing before")}
    after = jobs[0].p.clone()
    capturing(True)
    step(ready, jobs, scaled, skip, grads)
    assert not torch.equal(after, jobs[0].p)


@cases
def test_memory_is_kept_for_every_stream_that_uses_it(case, monkeypatch):
    jobs = jobs_of(case, SHAPES, lr=0.1)
    ready, stream, recorded = prepare(jobs), ["a"], []
    monkeypatch.setattr(prepared, "stream_of", lambda device: stream[0])
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda x, where: recorded.append((where, x.data_ptr())))
    rate = torch.tensor(0.5, dtype=torch.float16, device=jobs[0].p.device)
    for now in ("a", "a", "b", "b"):
        stream[0] = now
        step(ready, jobs, [job.now._replace(lr=rate) for job in jobs])
    kept = {place for where, place in recorded if where == "b"}
    own = {x.data_ptr() for job in jobs for x in (*stored(job), job.g)} | {rate.data_ptr()}
    assert kept >= {x.data_ptr() for x in reached_from(ready)} - own - {0}
    assert [place for _, place in recorded].count(ready._laid.tables.step_params.data_ptr()) == 1


def reached_from(thing):
    """All tensors that the garbage collector can reach from there, but for those of jobs."""
    seen, left, found = set(), [thing], []
    while left:
        for x in gc.get_referents(left.pop()):
            if id(x) not in seen and not isinstance(x, (type, engines.Job)) and "module" not in type(x).__name__:
                seen.add(id(x))
                if isinstance(x, torch.Tensor):
                    found.append(x)
                elif isinstance(x, (list, tuple, dict, set)) or type(x).__module__.startswith("layerwise.engines.gpu"):
                    left.append(x)
    return found
