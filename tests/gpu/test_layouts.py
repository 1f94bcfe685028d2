"""What is kept from step to step: tables for a few layouts of gradients, compiled kernels, memory in use."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from cases import KERNELED, case_of
from engines.worlds import make_job, mapped, now_of, numbers, stored
from gpu.world import GPU, SMALL

from layerwise import engines
from layerwise.engines.gpu import prepared, step_params
from layerwise.engines.gpu.engine import GpuEngine
from layerwise.errors import EngineError

cases = pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)


def jobs_of(case):
    return [
        mapped(make_job(case, case.hyper(lr=0.1), shape, (), i), GPU.array) for i, shape in enumerate([(12, 10), (7,)])
    ]


def prepare(jobs):
    return GpuEngine(None, SMALL).prepare([engines.Job(j.rule, j.h, j.p, j.state) for j in jobs])


def odd(g, by=1):
    return torch.empty(g.numel() + by, dtype=g.dtype, device=g.device)[by:].view(g.shape).copy_(g)


@cases
def test_gradients_in_turns_are_laid_out_once_each(case, monkeypatch):
    jobs = jobs_of(case)
    same = [mapped(job, GPU.copy) for job in jobs]
    ready, theirs, laid = prepare(jobs), prepare(same), []
    lay_out = prepared.PreparedOnGpu._lay_out
    monkeypatch.setattr(prepared.PreparedOnGpu, "_lay_out", lambda self, g: (laid.append(self), lay_out(self, g))[1])
    for t in range(1, 7):
        nows = [now_of(jobs[0].h, t)] * 2
        ready.step([odd(job.g) if t % 2 else job.g for job in jobs], nows)
        theirs.step([job.g for job in same], nows)
        for one, other in zip(jobs, same, strict=True):
            for x, y in zip(stored(one), stored(other), strict=True):
                np.testing.assert_allclose(numbers(x), numbers(y), rtol=1e-5, atol=1e-7)
        for one, other in zip(ready.stats(), theirs.stats(), strict=True):
            assert {key: pytest.approx(x, rel=1e-5) for key, x in dict(one).items()} == dict(other)
    assert laid.count(ready) == 2


def test_a_few_layouts_are_kept():
    jobs = jobs_of(case_of("Lamb"))
    ready = prepare(jobs)
    dtypes = torch.float32, torch.float64, torch.bfloat16, torch.float16
    for dtype in dtypes:
        for change in (lambda g: g, odd):
            ready.step([change(job.g.to(dtype)) for job in jobs], [job.now for job in jobs])
    assert len(ready._layouts) == prepared.LAYOUTS


@pytest.fixture
def capturing(monkeypatch):
    """Begin a recording, or end it."""
    state = [False]
    for module in (step_params, prepared):
        monkeypatch.setattr(module, "capturing", lambda device: state[0])
    return lambda on: state.__setitem__(0, on)


@cases
@pytest.mark.parametrize("new", ["nothing before", "a scale", "a skip", "a dtype"])
def test_nothing_is_compiled_in_a_recording(case, new, capturing, monkeypatch):
    jobs = jobs_of(case)
    ready, counts = prepare(jobs), [torch.zeros((), dtype=torch.int64, device=job.p.device) for job in jobs]
    nows = [job.now._replace(t=engines.Counter(count)) for job, count in zip(jobs, counts, strict=True)]
    grads = [job.g for job in jobs]
    if new != "nothing before":
        ready.step(grads, nows)
    before = [x.clone() for job in jobs for x in stored(job)]
    scaled = [now._replace(g_scale=2.0) for now in nows] if new == "a scale" else nows
    skip = torch.zeros((), dtype=torch.bool, device=grads[0].device) if new == "a skip" else None
    given = [g.bfloat16() for g in grads] if new == "a dtype" else grads
    capturing(True)
    with pytest.raises(EngineError, match="cannot be recorded in a CUDA graph before one like it has been taken"):
        ready.step(given, scaled, skip)
    assert all(torch.equal(x, y) for x, y in zip(before, (x for job in jobs for x in stored(job)), strict=True))
    capturing(False)
    ready.step(given, scaled, skip)  # with the parameters of the refused one
    assert {int(count) for count in counts} == {1 + (new != "nothing before")}
    after = [x.clone() for x in (jobs[0].p,)]
    capturing(True)
    ready.step(given, scaled, skip)
    assert not torch.equal(after[0], jobs[0].p)


@cases
def test_memory_is_kept_for_every_stream_that_uses_it(case, monkeypatch):
    jobs = jobs_of(case)
    ready, stream, recorded = prepare(jobs), ["a"], []
    monkeypatch.setattr(prepared, "stream_of", lambda device: stream[0])
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda x, where: recorded.append((where, x.data_ptr())))
    rate = torch.tensor(0.5, dtype=torch.float16, device=jobs[0].p.device)
    nows = [job.now._replace(lr=rate) for job in jobs]
    for now in ("a", "a", "b", "b"):
        stream[0] = now
        ready.step([job.g for job in jobs], nows)
    kept = {place for where, place in recorded if where == "b"}
    own = {x.data_ptr() for job in jobs for x in (*stored(job), job.g)} | {rate.data_ptr()}
    assert kept >= {x.data_ptr() for x in reached_from(ready)} - own - {0}
    tables = [place for where, place in recorded if place == ready._laid.tables.coefficients.data_ptr()]
    assert len(tables) == 1


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
