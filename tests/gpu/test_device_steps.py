"""A step is prepared once and then costs the host little: what only the device knows stays there, and one launch takes
many tensors. None of that may change what a step comes to.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import case_of
from engines.worlds import bits, new_gradient, now_of, numbers
from gpu.world import DEVICE, GPU, cases, copies, given, jobs_of, near, prepared, step

from layerwise.engines import DeviceStepCount, addresses
from layerwise.engines.gpu import step_params
from layerwise.engines.gpu.layout import layers_are_aligned
from layerwise.rules.requests import Now

LAMB, ADAFACTOR = case_of("Lamb"), case_of("Adafactor")
both = pytest.mark.parametrize("case", [LAMB, ADAFACTOR], ids=lambda case: case.name)
SHAPES = [(9, 6), (5,), (), (0, 4), (150,)]


def counters(n, start=0):
    return [torch.tensor(start, device=DEVICE) for _ in range(n)]


def real(x, dtype=torch.float64):
    return torch.tensor(x, dtype=dtype, device=DEVICE)


@pytest.mark.thinned(3)
@cases
@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 1.0}], ids=["plain", "clipped"])
def test_launches_are_as_many_for_many_tensors(case, options, launches):
    counted = []
    for n in (1, 3):
        jobs = jobs_of(case, [(6, 5), (7,)] * n, **options)
        ready = prepared(jobs)
        step(ready, jobs)
        launches.clear()
        step(ready, jobs)
        counted.append(list(launches))
    assert counted[0] == counted[1] != []


def test_tensors_of_the_same_dtypes_share_launches(launches):
    jobs = [job for low in ("float32", "bfloat16") for job in jobs_of(LAMB, [(8,), (9,)], (low, low, "float32"))]
    step(prepared(jobs), jobs)
    assert launches.count("apply") == 2


@both
@pytest.mark.parametrize("told", ["on the device", "counted there", "with another default device"])
def test_steps_have_the_same_bits_however_the_engine_is_told_of_them(case, told):
    """Scales in float16 and in float64, counts, rates and decays may be numbers or arrays on the device."""
    jobs = jobs_of(case, SHAPES, lr=0.1, weight_decay=0.1, max_grad_norm=1.0)
    others, counts = copies(jobs), counters(len(jobs))
    theirs = prepared(others)
    with torch.device("meta" if told == "with another default device" else "cpu"):
        ready = prepared(jobs)
        assert ready.counts
        for t in (1, 2):
            now = Now(t, 0.1, 0.25, 8.0, 0.5 + t / 10 if case is ADAFACTOR else None)  # not that of the step
            step(theirs, others, [now] * len(jobs))
            nows = [now] * len(jobs)
            if told == "on the device":
                now = now._replace(t=torch.tensor(t, device=DEVICE), lr=real(0.1), weight_decay=real(0.25))
                now = now._replace(beta2=now.beta2 and real(now.beta2))
                nows = [now._replace(g_scale=real(8.0, torch.float16 if i % 2 else torch.float64)) for i in range(5)]
            if told == "counted there":
                nows = [now._replace(t=DeviceStepCount(count)) for count in counts]
            step(ready, jobs, nows)
            assert bits(jobs) == bits(others)
    assert {int(count) for count in counts} == {2 if told == "counted there" else 0}


def test_a_number_may_follow_one_that_was_on_the_device(monkeypatch):
    """Even 0, in the place of which the host knew nothing, as it does of all that is on a GPU."""
    known = step_params.kernel_numbers
    there = lambda h, now: None if isinstance(now.lr, torch.Tensor) else known(h, now)  # noqa: E731
    monkeypatch.setattr(step_params, "kernel_numbers", there)
    jobs, others = jobs_of(LAMB, [(5,)]), jobs_of(LAMB, [(5,)])
    ready, theirs = prepared(jobs), prepared(others)
    for lr in (0.5, 0.0, 0.25):
        step(ready, jobs, [Now(1, real(lr) if lr == 0.5 else lr, 0.0)])
        step(theirs, others, [Now(1, lr, 0.0)])
        assert bits(jobs) == bits(others)


@both
def test_a_skipped_step_leaves_weights_state_counts_and_measurements(case):
    jobs = jobs_of(case, SHAPES, max_grad_norm=1.0)
    ready, counts = prepared(jobs), counters(len(jobs), 1)
    step(ready, jobs)
    nows = [job.now._replace(t=DeviceStepCount(count)) for job, count in zip(jobs, counts, strict=True)]

    def found():
        return bits(jobs), [dict(stats) for stats in ready.stats()], [int(count) for count in counts]

    before = found()
    step(ready, jobs, nows, torch.tensor(True, device=DEVICE), [torch.full_like(job.g, np.nan) for job in jobs])
    assert found() == before
    step(ready, jobs, nows, torch.tensor(False, device=DEVICE))
    assert bits(jobs) != before[0]
    assert found()[2] == [2] * len(jobs)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, of the interpreter
@pytest.mark.thinned(2)
@cases
def test_an_infinite_global_norm_does_not_touch_unclipped_groups(case):
    """Whose bound is infinite too, and inf/inf is nan."""
    bounded, free = jobs_of(case, [(4,)], max_grad_norm=1.0), jobs_of(case, [(4,)])
    counting = [replace(job, h=job.h.counted_in_norm()) for job in copies(free)]
    infinite = torch.tensor([torch.inf, 1.0, 1.0, 1.0], device=DEVICE)
    step(prepared([*bounded, *counting]), [*bounded, *counting], grads=[infinite, free[0].g])
    step(prepared(free), free)
    assert not torch.isfinite(bounded[0].p).all()
    np.testing.assert_array_equal(numbers(counting[0].p), numbers(free[0].p))


def test_a_step_sends_nothing_to_the_device_that_it_has(monkeypatch):
    """Gradients in other memory are found there."""
    jobs, sent, send = jobs_of(LAMB, SHAPES), [], step_params.StepParams._send
    monkeypatch.setattr(step_params.StepParams, "_send", lambda self, *args: (sent.append(1), send(self, *args)))
    others, counts, counted = copies(jobs), counters(len(jobs)), []
    ready, theirs = prepared(jobs), prepared(others)
    nows = [job.now._replace(t=DeviceStepCount(count)) for job, count in zip(jobs, counts, strict=True)]
    for t in (1, 2, 3):
        grads = [-job.g for job in jobs] if t == 3 else None
        step(ready, jobs, nows, grads=grads)
        counted.append(len(sent))
        step(theirs, others, [now_of(jobs[0].h, t)] * len(jobs), grads=grads)
        sent.clear()
    assert counted == [1, 0, 1]
    assert bits(jobs) == bits(others)


def odd(g):
    return torch.empty(g.numel() + 1, dtype=g.dtype, device=DEVICE)[1:].view(g.shape).copy_(g)


def turned(g):
    return g.mT.contiguous().mT if g.ndim == 2 else g.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("case", "extension"),
    [(LAMB, True), (LAMB, False), (ADAFACTOR, True)],
    ids=["Lamb", "Lamb, in Python", "Adafactor"],
)
def test_gradients_may_lie_otherwise_from_one_step_to_the_next(case, extension, monkeypatch):
    """In another dtype, with other strides, at another alignment, as one number for a row; and as before again."""
    if not extension:
        monkeypatch.setattr(addresses, "_native", None)
    jobs = jobs_of(case, [(6, 5), (2, 3, 2, 5)])
    others = copies(jobs)
    ready = prepared(jobs)
    changes = (torch.clone, turned, odd, torch.Tensor.bfloat16, lambda g: g[..., :1].expand_as(g), torch.clone)
    for t, change in enumerate(changes, 1):
        nows = [now_of(jobs[0].h, t)] * 2
        grads = [change(GPU.array(new_gradient(numbers(job.p), t, "float32"))) for job in jobs]
        step(ready, jobs, nows, grads=grads)
        plain = [g.clone(memory_format=torch.contiguous_format) for g in grads]
        step(prepared(others), others, nows, grads=plain)
        near(jobs, others)


def test_vectors_are_moved_only_where_all_begin_at_multiples_of_sixteen_bytes():
    """Elsewhere a GPU cannot move them, though the interpreter can."""
    [job] = copies(jobs_of(LAMB, [(8,)]))
    arrays = [job.p, job.g.clone(), job.state.exp_avg]
    assert layers_are_aligned(given(job), arrays)
    for i, x in enumerate(arrays):
        assert not layers_are_aligned(given(job), [*arrays[:i], odd(x), *arrays[i + 1 :]])
