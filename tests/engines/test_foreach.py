"""Lists of tensors step as the rule steps each of them, in few calls, and leave no memory behind."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from cases import CASES, KERNELED, case_of
from draws import seeds
from engines.jobs import Limits, drawn, held
from engines.parts import stepping_in_parts
from engines.worlds import WORLDS, Stepping, as_torch, make_job, mapped, new_gradient, now_of, numbers, stored
from torch.utils._python_dispatch import TorchDispatchMode

import layerwise.torch
from layerwise import engines
from layerwise.engines.rule import RuleEngine
from layerwise.errors import EngineError
from layerwise.torch.arrays._library import Tensors
from layerwise.torch.step import _engines

WORLD, ENGINE = WORLDS[1], _engines.ForeachEngine(anywhere=True)
ONE_BY_ONE = RuleEngine(Tensors())
EACH = 18
SHAPES = [(70, 90), (33,), (70, 90), (3, 4, 5), (), (1, 30), (0, 4), (128, 64), (33,)]


@pytest.mark.every
@pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
@pytest.mark.parametrize("first", seeds(1, 10))
def test_any_jobs_are_stepped_as_by_the_rule(case, first):
    """Dtypes, blocks, storage formats, layouts, parts and norms of all, of what is drawn for kernels."""
    for seed in range(EACH * first, EACH * (first + 1)):
        one, step = drawn(case, seed, Limits(layouts=WORLD.layouts)), Stepping(ENGINE).step
        if one.parts:
            step = stepping_in_parts(ENGINE, one.parts, one.cuts, WORLD.array)
        assert held(one, WORLD, step)


def jobs_of(case, options, blocks=False, dtype="float32"):
    h = case.hyper(**options)
    dims = [(0,) if blocks and len(shape) > 1 else () for shape in SHAPES]
    each = zip(SHAPES, dims, strict=True)
    return [mapped(make_job(case, h, *one, k, (dtype,) * 3), as_torch) for k, one in enumerate(each)]


def differ(jobs, others):
    """The largest difference of what is stored, beside the largest number of its array."""
    pairs = [
        (numbers(x), numbers(y))
        for job, other in zip(jobs, others, strict=True)
        for x, y in zip(stored(job), stored(other), strict=True)
        if x.numel()
    ]
    return max(float(np.abs(x - y).max() / (np.abs(y).max() + 1e-30)) for x, y in pairs)


def followed(jobs, t, **more):
    """The jobs with what they are given for a step."""
    each = enumerate(jobs)
    grads = [as_torch(new_gradient(job.p.numpy(), 10 * t + k, "float32")).to(job.p.dtype) for k, job in each]
    return [replace(job, g=g, now=now_of(job.h, t), **more) for job, g in zip(jobs, grads, strict=True)]


@pytest.mark.every
@pytest.mark.parametrize("blocks", [False, True], ids=["whole", "blocks"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("seed", seeds(2, 8))
def test_every_rule_steps_to_the_same_numbers_and_measures_the_same(case, seed, dtype, blocks):
    options = case.drawn(seed) if seed else case.busy
    mine = jobs_of(case, options, blocks, dtype)
    theirs = [mapped(job, torch.clone) for job in mine]
    for t in (1, 2, 3):
        mine, theirs = followed(mine, t), followed(theirs, t)
        found, wanted = Stepping(ENGINE).step(mine), Stepping(ONE_BY_ONE).step(theirs)
        assert differ(mine, theirs) < (1e-6 if dtype == "float32" else 1e-13)
        for one, other in zip(found, wanted, strict=True):
            assert one.keys() == other.keys()
            for key, x in one.items():
                np.testing.assert_allclose(numbers(x).ravel(), numbers(other[key]).ravel(), 3e-6, 1e-30, err_msg=key)


@pytest.mark.parametrize("name", ["Lamb", "Adafactor", "Came", "Lion"])
def test_a_step_that_the_device_skips_changes_nothing_and_one_that_it_takes_does(name):
    case = case_of(name)
    for skip in (True, False):
        jobs = followed(jobs_of(case, case.busy), 1, skip=torch.tensor(skip))
        before, after = ([mapped(job, torch.clone) for job in jobs] for _ in range(2))
        Stepping(ENGINE).step(jobs)
        if not skip:
            Stepping(ONE_BY_ONE).step([replace(job, skip=None) for job in after])
        assert differ(jobs, after) < (1e-6 if not skip else 1e-30)
        assert skip or differ(jobs, before) > 1e-4


@pytest.mark.every
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_numbers_of_the_step_may_be_of_each_tensor(case):
    """Counts and rates on the device, and rates that differ between groups: one list of them all."""
    jobs = followed(jobs_of(case, case.busy), 3)
    for on_device in (True, False):
        mine, theirs = ([mapped(job, torch.clone) for job in jobs] for _ in range(2))
        for k, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            now = one.now._replace(t=3 + k % 3, lr=0.1 * (k + 1))
            on = now._replace(t=torch.tensor(float(now.t)), lr=torch.tensor(now.lr)) if on_device else now
            mine[k], theirs[k] = replace(one, now=on), replace(other, now=now)
        prepared = Stepping(ENGINE).prepare(mine)
        prepared.step([job.g for job in mine], [job.now for job in mine])
        Stepping(ONE_BY_ONE).step(theirs)
        assert differ(mine, theirs) < 3e-6
        alike = {(job.h, type(job.state), tuple(x is None for x in job.state)) for job in mine}
        assert len(prepared.only._lists) == len(alike)


# ---- calls and memory


class Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.found[str(func)] += 1
        return func(*args, **(kwargs or {}))


def like_bert(width=16):
    """The 199 shapes of BERT-base, sixteen of its columns wide."""
    wide, long = 4 * width, 40 * width
    layer = [(width, width), (width,)] * 4 + [(wide, width), (wide,), (width, wide), (width,)] + [(width,)] * 4
    return [(long, width), (32, width), (2, width), (width,), (width,), *layer * 12, (width, width), (width,)]


def prepared(front, shapes, **options):
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    opt = front(params, foreach=True, **options)
    for _ in range(2):
        for p in params:
            p.grad = torch.randn_like(p)
        opt.step()
    return opt


AIMS = {"Lamb": 120, "Lars": 90, "Adafactor": 300, "Came": 500, "AdamW": 60, "SGD": 20, "Lion": 60, "StableAdamW": 60}


@pytest.mark.parametrize("name", AIMS)
def test_a_step_takes_few_calls_whatever_the_number_of_tensors(name):
    opt = prepared(getattr(layerwise.torch, name), like_bert(), lr=0.01)
    with Calls() as calls:
        opt.step()
    assert sum(calls.found.values()) <= AIMS[name]
    assert max(calls.found.values()) < 64  # nothing is called for each tensor


@pytest.mark.parametrize("name", ["Lamb", "Came"])
def test_buffers_hold_no_memory_between_steps(name):
    opt = prepared(getattr(layerwise.torch, name), [(64, 64), (8, 8), (64,)], lr=0.01)
    [step] = opt._stepper.steps.values()
    some = 0
    for lists in step.prepared.only._lists.values():
        for layout in lists._layouts.values():
            buffers = [buffer for free in layout.free.values() for buffer in free]
            some += len(buffers)
            assert all(buffer.flat.untyped_storage().nbytes() == 0 for buffer in buffers)
    assert some


def test_lists_have_as_many_elements_as_are_asked_for():
    shapes, found = [(64, 64)] * 6 + [(300, 300), (7,)], []
    try:
        for most in (1 << 27, 2 * 64 * 64):
            layerwise.torch.set_bucket_size(most)
            opt = prepared(partial(layerwise.torch.AdamW, lr=0.01), shapes)
            [step] = opt._stepper.steps.values()
            found.append([sum(map(np.prod, lists._shapes)) for lists in step.prepared.only._lists.values()])
    finally:
        layerwise.torch.set_bucket_size(1 << 27)
    whole, parts = found
    assert len(whole) == 1
    assert len(parts) >= 5
    assert sum(parts) == sum(whole)
    assert sorted(parts)[-2] <= 2 * 64 * 64 < sorted(parts)[-1] == 300 * 300


# ---- which engine steps


@pytest.mark.parametrize(
    ("options", "by"),
    [
        ({}, "the compiled engine"),
        ({"foreach": False}, "the compiled engine"),
        ({"fused": False}, "the rule"),
        ({"foreach": False, "fused": False}, "the rule"),
        ({"foreach": True}, "foreach"),
        ({"foreach": True, "fused": False}, "foreach"),
    ],
)
def test_options_say_what_steps_on_a_cpu(options, by):
    p = torch.nn.Parameter(torch.ones(3))
    opt = layerwise.torch.Lamb([("w", p)], lr=0.1, **options)
    assert opt.engines() == {}
    p.grad = torch.ones(3)
    opt.step()
    assert opt.engines() == {"w": by}


def test_lists_step_on_accelerators_and_leave_a_cpu_to_others():
    case = case_of("Came")
    here = engines.Job(case.rule, case.hyper(), torch.ones(3), None)
    there = here._replace(p=torch.ones(3, device="meta"))
    [row] = [row for row in _engines.ENGINES if row.name == "foreach"]
    assert row.engine.reasons_to_decline([here, there]) == ["on a CPU, lists are slower than one tensor at a time", ""]
    assert row.required.reasons_to_decline([here, there]) == ["", ""]
    assert [engine.name for engine in _engines.engines_of("without kernels", False)] == ["foreach", "the rule"]


def test_a_required_engine_that_is_missing_is_an_error(monkeypatch):
    monkeypatch.setattr(_engines, "ENGINES", (engines.Candidate("foreach", None, "it was taken out"),))
    with pytest.raises(EngineError, match="it was taken out"):
        layerwise.torch.Lamb([torch.nn.Parameter(torch.ones(2))], lr=0.1, foreach=True)
