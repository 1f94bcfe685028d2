"""With exact sums a step of the compiled engine gives the same bits however tensors lie, are cut, and are stepped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases import KERNELED, case_of
from engines.parts import Cut, stepping_in_parts
from engines.worlds import (
    LAYOUTS,
    WORLDS,
    Stepping,
    agree,
    bits,
    make_job,
    mapped,
    needed,
    new_gradient,
    now_of,
    stored,
)

import layerwise
from layerwise import engines
from layerwise.engines import compiled
from layerwise.engines.rule import RuleEngine
from layerwise.storage import Format, Storage
from layerwise.storage.index import index_of
from layerwise.torch.step._exact import ReproducibleTensors

pytestmark = needed
NUMPY, TORCH = WORLDS
CLIPPED = {"max_grad_norm": 0.5, "max_grad_norm_per_tensor": 0.3}
SHAPES = [(37, 45), (1001,), (4, 3, 2, 5), (300, 170), (), (3, 0), (0, 4, 3)]
DTYPES = {"float32": ("float32",) * 3, "float64": ("float64",) * 3, "bfloat16": ("bfloat16", "bfloat16", "float32")}
cases = pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def exact():
    return Stepping(compiled.CompiledEngine(exact=True))


def many(case, dtype="float32", layout="plain", shapes=SHAPES):
    h = case.hyper(**{**case.busy, **{name: x for name, x in CLIPPED.items() if name in case.options}})
    return [make_job(case, h, shape, (), i, DTYPES[dtype], layout) for i, shape in enumerate(shapes)]


def walked(step, jobs, layout="plain", steps=3):
    """The bits of weights and state after some steps, whose gradients lie in memory in one way or another.

    Gradients become smaller along a row, so that the smallest have other digits than the largest.
    """
    for t in range(1, steps + 1):
        grads = [new_gradient(job.p, t + i, job.g.dtype.name, layout) for i, job in enumerate(jobs)]
        for g in grads:
            g[...] = g.astype(float) * 10.0 ** np.linspace(0, -14, g.shape[-1] if g.ndim else 1)
        jobs = [replace(job, now=now_of(job.h, t), g=g) for job, g in zip(jobs, grads, strict=True)]
        with np.errstate(all="ignore"):
            step(jobs)
    return bits(jobs)


@cases
@dtypes
def test_no_place_in_memory_changes_a_bit(case, dtype):
    wanted = walked(exact().step, many(case, dtype))
    for layout in LAYOUTS[1:]:
        assert walked(exact().step, many(case, dtype, layout), layout) == wanted, layout
    assert walked(exact().step, many(case, dtype), "transposed") == wanted, "the gradients alone"


def test_ordinary_sums_depend_on_it():
    """Else equal bits say nothing."""
    case = case_of("Lamb")
    found = {tuple(walked(NUMPY.engine().step, many(case, "float32", layout), layout)) for layout in LAYOUTS}
    assert len(found) > 1


@cases
@dtypes
@pytest.mark.parametrize("cuts", [(0, (1, 20)), (1, (9, 44)), (1, (1, 2))], ids=str)
def test_no_cut_changes_a_bit(case, dtype, cuts):
    shapes = [(37, 45), (301, 170), (64, 128)]
    cut = [Cut(*cuts)] * len(shapes)
    wanted = walked(exact().step, many(case, dtype, shapes=shapes))
    in_parts = stepping_in_parts(compiled.CompiledEngine(exact=True), 3, cut, lambda array: array)
    assert walked(in_parts, many(case, dtype, shapes=shapes)) == wanted


@cases
def test_no_number_of_threads_changes_a_bit(case):
    """Of tensors in several chunks, of few long rows and of many short ones, whose digits are carried on the way."""
    found, before = [], layerwise.get_num_threads()
    try:
        for threads in (1, 2, 7):
            layerwise.set_num_threads(threads)
            found.append(walked(exact().step, many(case, shapes=[(3, 100_000), (50_000, 6), (700_001,)]), steps=2))
    finally:
        layerwise.set_num_threads(before)
    assert found[0] == found[1] == found[2]


@cases
@dtypes
def test_it_is_the_step_of_the_rule_with_exact_sums(case, dtype):
    """But for roundings: the rule computes what is made of sums in the dtype of the arithmetic, kernels in float64."""
    rule = Stepping(RuleEngine(ReproducibleTensors()))
    jobs = [mapped(job, TORCH.array) for job in many(case, dtype, shapes=SHAPES[:4])]
    others, before = ([mapped(job, TORCH.copy) for job in jobs] for _ in range(2))
    rule.step(others)
    exact().step(jobs)
    for job, other, old in zip(jobs, others, before, strict=True):
        agree(job, other, [np.asarray(x.double()) for x in stored(old)], DTYPES[dtype])


@pytest.mark.parametrize(("exactly", "why"), [(True, "random"), (False, "")])
def test_what_is_rounded_by_its_place_is_left_to_the_rule_wherever_it_lies(exactly, why):
    job = make_job(case_of("SGD"), case_of("SGD").hyper(lr=0.1), (8, 8), (), 0)
    drawn = Format(key=(1, 2))
    storage = Storage((drawn, *(None for _ in job.state)), index_of((8, 8)))
    given = engines.Job(job.rule, job.h, job.p, job.state, storage=storage)
    assert why in compiled.CompiledEngine(exact=exactly).declines([given])[0]


def test_so_are_tensors_of_more_dimensions_than_may_be_cut():
    job = make_job(case_of("SGD"), case_of("SGD").hyper(lr=0.1), (2,) * 9, (), 0)
    given = engines.Job(job.rule, job.h, job.p, job.state)
    assert "8 dimensions" in compiled.CompiledEngine(exact=True).declines([given])[0]
    assert compiled.CompiledEngine().declines([given]) == [""]
