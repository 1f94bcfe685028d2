"""Steps of the engine whose launches are executed as they are compiled, each compared with the rule.

This module is for the process of `process.py`. Its functions return a `Found`, or raise.
"""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from cases import case_of
from engines import parts
from engines.jobs import drawn, held
from engines.parts import Cut, in_parts, step_parts, stepping_in_parts
from engines.parts import check as check_parts
from engines.worlds import EPS, Job, agree, bits, make_job, mapped, new_gradient, now_of, numbers, stored
from gpu.executed.cases import BLOCKS, ERRORS, LIMITS, PLANES, PROGRAMS, SHAPES, STORED
from gpu.executed.counting import counted as bytes_of
from gpu.executed.executing import execute, use
from gpu.executed.planting import planted
from gpu.executed.process import Found
from gpu.executed.recording import recording
from gpu.front import alike, both, walk
from gpu.world import ENGINE, GPU, SMALL, given
from torch_front.front import FRONT_OF

from gpu import storing
from layerwise.engines import DeviceStepCount
from layerwise.engines.gpu import GpuEngine, specialization
from layerwise.rules.requests import Now

parts.PATIENCE = 600  # seconds, in which kernels are compiled and executed
SCALE = 4.0  # of gradients, a power of two, so that their digits stay
EXECUTOR = execute()
use(ENGINE)


def found(*distances: float) -> Found:
    launches = dict(Counted(launch.kernel for launch in EXECUTOR.launches))
    return Found(launches, max(distances, default=0.0))


def distance(ours: Any, theirs: Any) -> float:
    ours, theirs = numbers(ours), numbers(theirs)
    return float(abs(ours - theirs).max(initial=0) / (abs(theirs).max(initial=0) or 1))


# ---- an optimizer, as it is used


def by_front(name: str, max_grad_norm: float) -> Found:
    """Step an optimizer of the PyTorch API."""
    EXECUTOR.begin()
    (ours, mine), (theirs, other) = pairs = both(FRONT_OF[name], max_grad_norm=max_grad_norm)
    walk(pairs, range(2))
    alike(ours, theirs)
    assert mine.stats().keys() == other.stats().keys()
    return found(*(distance(p.detach(), q.detach()) for p, q in zip(ours, theirs, strict=True)))


# ---- jobs


def program(name: str, dtype: str) -> Found:
    """Step tensors of one program, and blocks, twice."""
    return stepped(jobs_of(name, dtype))


def planes(name: str, dtype: str) -> Found:
    """Step matrices of all sizes that have tiles of their own."""
    return stepped(jobs_of(name, dtype, PLANES))


def jobs_of(name: str, dtype: str = "float32", shapes: Any = (*SHAPES, *BLOCKS), **options: Any) -> list[Job]:
    """Begin, and return jobs of a program."""
    EXECUTOR.begin()
    one = PROGRAMS[name]
    case, dtypes = case_of(one.rule), (dtype,) * 3
    h = case.hyper(**{**one.options, **options})
    made = [make_job(case, h, shape, blocks, i, dtypes) for i, (shape, blocks) in enumerate(shapes)]
    return [mapped(job, GPU.array) for job in made]


def at(jobs: Sequence[Job], t: int) -> list[Job]:
    """Return the jobs as step t takes them, with a rate and gradients of its own."""
    found = []
    for i, job in enumerate(jobs):
        g = GPU.array(new_gradient(numbers(job.p), 10 * t + i, str(job.g.dtype)[6:]))
        found.append(replace(job, g=g, now=now_of(job.h, t)._replace(lr=job.h.lr / t)))
    return found


def stepped(jobs: list[Job], step: Callable[[list[Job], Any, int], None] | None = None, steps: int = 2) -> Found:
    """Step the jobs and compare each step with the rule's from the same start."""
    ready, distances = ENGINE.prepare(list(map(given, jobs))), []
    for t in range(1, steps + 1):
        jobs = at(jobs, t)
        before, theirs = [[numbers(x) for x in stored(job)] for job in jobs], [mapped(job, GPU.copy) for job in jobs]
        if step is None:
            ready.step([job.g for job in jobs], [job.now for job in jobs], None)
        else:
            step(jobs, ready, t)
        GPU.rule.step(theirs)
        for one, other, old in zip(jobs, theirs, before, strict=True):
            agree(one, other, old, [str(x.dtype)[6:] for x in (one.p, one.g, one.p)])
        distances += [distance(one.p, other.p) for one, other in zip(jobs, theirs, strict=True)]
    return found(*distances)


def counted(name: str) -> Found:
    """Leave counts, rates and the scale of gradients on the device, which skips a step before each."""
    jobs = jobs_of(name)
    counts, on_device = [torch.tensor(0) for _ in jobs], [torch.tensor(0.0, dtype=torch.float64) for _ in range(3)]
    skip = torch.tensor(False)

    def step(jobs: list[Job], ready: Any, t: int) -> None:
        for number, x in zip(on_device, (jobs[0].now.lr, jobs[0].now.weight_decay, SCALE), strict=True):
            number.fill_(x)
        nows = [Now(DeviceStepCount(n), *on_device, job.now.beta2) for n, job in zip(counts, jobs, strict=True)]
        before = bits(jobs)
        ready.step([torch.full_like(job.g, torch.nan) for job in jobs], nows, skip.fill_(True))
        assert bits(jobs) == before
        ready.step([SCALE * job.g for job in jobs], nows, skip.fill_(False))
        assert [int(n) for n in counts] == [t] * len(jobs)

    return stepped(jobs, step)


def replayed(name: str) -> Found:
    """Record a step, and replay it twice with other gradients and another rate in the same places."""
    jobs, ran = jobs_of(name), []
    counts, rate = [torch.tensor(0) for _ in jobs], torch.tensor(0.0, dtype=torch.float64)
    grads = [torch.zeros_like(job.g) for job in jobs]

    def step(jobs: list[Job], ready: Any, t: int) -> None:
        rate.fill_(jobs[0].now.lr)
        for there, job in zip(grads, jobs, strict=True):
            there.copy_(job.g)
        nows = [job.now._replace(t=DeviceStepCount(n), lr=rate) for n, job in zip(counts, jobs, strict=True)]
        if t == 1:
            ready.step(grads, nows, None)
            with recording(EXECUTOR) as graph:
                ready.step(grads, nows, None)
            ran.append(graph)
        else:
            ran[0].replay()
        assert [int(n) for n in counts] == [t] * len(jobs)

    return stepped(jobs, step, steps=3)


def odd(name: str) -> Found:
    """Step gradients that begin where no vector may."""

    def step(jobs: list[Job], ready: Any, t: int) -> None:
        room = [torch.zeros(job.g.numel() + 1) for job in jobs]
        grads = [x[1:].view(job.g.shape).copy_(job.g) for x, job in zip(room, jobs, strict=True)]
        ready.step(grads, [job.now for job in jobs], None)

    return stepped(jobs_of(name), step)


def clipped(name: str) -> Found:
    """Bound the norms of gradients, that of each and that of all."""
    bounds = {"max_grad_norm": 0.5, "max_grad_norm_per_tensor": 0.7}
    own = {key: x for key, x in bounds.items() if key in case_of(PROGRAMS[name].rule).options}
    return stepped(jobs_of(name, **own))


def in_two_parts(name: str) -> Found:
    """Step two parts, as two ranks do, which add up their sums between launches."""
    EXECUTOR.begin()
    one, cut = PROGRAMS[name], Cut(0, (7,))
    case = case_of(one.rule)
    job = make_job(case, case.hyper(**one.options), SHAPES[0][0], (), 0)
    both_parts = in_parts(job, cut, 2)
    step_parts(ENGINE, [[part] for part in both_parts], [job.p.shape], [cut], GPU.array)
    theirs = mapped(job, lambda x: GPU.array(x.copy()))
    GPU.rule.step([theirs])
    check_parts(theirs, both_parts, 8 * EPS["float32"])
    whole = torch.cat([GPU.array(part.p) for part in both_parts])
    return found(distance(whole, theirs.p))


# ---- storage formats, and jobs drawn at random


def form(rule: str, number: int) -> Found:
    """Step tensors in a storage format: rows of whole groups, others, and one row."""
    EXECUTOR.begin()
    distances = []

    def check(one: Any, other: Any) -> None:
        storing.agree(one, other)
        distances.append(distance(storing.full(one), storing.full(other)))

    def make() -> list[Any]:
        jobs = [storing.stored_job(case_of(rule), shape, storing.FORMS[number], name=str(shape)) for shape in STORED]
        return [job for job in jobs if not specialization.why_declined(job)]

    storing.held(make, check=check)
    return found(*distances)


def any_jobs(rule: str, seed: int) -> Found:
    """Step jobs drawn at random: any options, dtypes, blocks and formats, whole and in parts."""
    EXECUTOR.begin()
    one, step = drawn(case_of(rule), seed, LIMITS), GPU.engine().step
    if one.parts:
        step = stepping_in_parts(GpuEngine(sizes=SMALL), one.parts, one.cuts, GPU.array)
    held(one, GPU, step)
    return found()


def moved(optimizer: str, label: str) -> float:
    """Return the bytes that a step moves for each parameter, with chunks and tiles as they usually are."""
    use(GpuEngine())
    try:
        found = bytes_of(EXECUTOR, optimizer, label)
    finally:
        use(ENGINE)
    return float(found["read"] + found["written"])


def with_error(name: str) -> Found:
    """Take steps with an error in a kernel."""
    error = ERRORS[name]
    with planted(error):
        steps, *args = error.steps
        result: Found = globals()[steps](*args)
    return result
