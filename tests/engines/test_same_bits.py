"""Threads, company and another run do not change a bit of a step: sums are added up in the same order."""

from __future__ import annotations

import threading
from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from cases import CASES, KERNELED, case_of
from engines.worlds import WORLDS, bits, make_job, needed, new_gradient, now_of

import layerwise
import layerwise.torch

pytestmark = needed
NUMPY = WORLDS[0]
CLIPPED = {"max_grad_norm": 0.5, "max_grad_norm_per_tensor": 0.3}
# Several chunks each, several tensors of one chunk, one that is cut along its columns, one of rank four.
SHAPES = [(300, 390), (70_001,), (5,), (), (3, 100_000), (6, 5, 40, 50), (0, 4), (200, 7)]
assert sum(map(prod, SHAPES)) > 2**19, "fewer elements are stepped by one thread alone"
cases = pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def threads():
    before = layerwise.get_num_threads()
    layerwise.set_num_threads(2)
    yield layerwise.set_num_threads
    layerwise.set_num_threads(before)


def many(case, options, dtype="float32", shapes=SHAPES):
    h = case.hyper(**{**case.busy, **{name: x for name, x in options.items() if name in case.options}})
    kinds = (dtype, dtype, "float64" if dtype == "float64" else "float32")
    return [make_job(case, h, shape, (), i, kinds) for i, shape in enumerate(shapes)]


def walked(engine, jobs, steps=2):
    """The bits of weights and state after some steps, and the last measurements."""
    for t in range(1, steps + 1):
        jobs = [replace(job, now=now_of(job.h, t), g=new_gradient(job.p, t, job.g.dtype.name)) for job in jobs]
        with np.errstate(all="ignore"):
            stats = engine.step(jobs)
    return bits(jobs), [{key: np.asarray(value).tolist() for key, value in one.items()} for one in stats]


@cases
@pytest.mark.parametrize(("options", "dtype"), [({}, "float32"), (CLIPPED, "bfloat16"), (CLIPPED, "float64")], ids=str)
def test_threads_do_not_change_a_bit(case, options, dtype, threads):
    found = []
    for n in (1, 2, 7):
        threads(n)
        found.append(walked(NUMPY.engine(), many(case, options, dtype)))
    assert found[0] == found[1] == found[2]


def trained(case, fused):
    """The bits of weights after some steps of PyTorch's tensors, small ones, stacks of them and slices."""
    draw = torch.Generator().manual_seed(0)
    params = [
        torch.nn.Parameter(torch.randn(shape, generator=draw)) for shape in [*[(33, 40)] * 3, (7,), (), (900, 700)]
    ]
    options = {name: x for name, x in CLIPPED.items() if name in case.options}
    opt = getattr(layerwise.torch, case.name)(params, lr=0.1, fused=fused, **options)
    for _ in range(3):
        for p in params:
            p.grad = torch.randn(p.shape, generator=draw)
        opt.step()
    return [p.detach().numpy().tobytes() for p in params]


@pytest.mark.parametrize("case", [case for case in CASES if case.name != "Muon"], ids=lambda case: case.name)
@pytest.mark.parametrize("fused", [None, False])
def test_a_run_has_the_bits_of_the_run_before(case, fused):
    found = trained(case, fused)
    moved = [torch.ones(n) for n in range(1, 300)]  # memory elsewhere
    assert trained(case, fused) == found
    del moved


@cases
def test_other_tensors_in_a_step_do_not_change_a_bit(case):
    together, _ = walked(NUMPY.engine(), many(case, {}))
    assert together == [x for job in many(case, {}) for x in walked(NUMPY.engine(), [job])[0]]


def test_one_list_of_jobs_is_stepped_by_two_threads_at_once():
    """The second does not wait for the first, and does not share its memory. A long step lets others run Python."""
    engine, shapes = NUMPY.engine(), [*SHAPES, (2100, 2000)]
    lists = [many(case_of("Lamb"), {}, shapes=shapes) for _ in range(2)]
    lists[1] = [replace(job, h=other.h) for job, other in zip(lists[1], lists[0], strict=True)]

    def often(jobs):
        for _ in range(8):
            engine.step(jobs)

    running = [threading.Thread(target=often, args=(jobs,)) for jobs in lists]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert bits(lists[0]) == bits(lists[1])
