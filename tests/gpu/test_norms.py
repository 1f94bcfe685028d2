"""Norms of tensors whose squares no float32 can hold: summed as if in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import case_of
from engines.worlds import numbers
from gpu.world import DEVICE, jobs_of, prepared, step

SHAPES = [(9, 7), (150,), ()]
LAMB, LARS, ADAFACTOR = (case_of(name) for name in ("Lamb", "Lars", "Adafactor"))
scales = pytest.mark.parametrize("scale", [1e-33, 1e25, pytest.param(1e-25, marks=pytest.mark.slow), 1e36])


def norm(x):
    return np.linalg.norm(x)


def stepped(case, scale_p, scale_g, dtype="float32", **options):
    """The jobs, the stats of a step, and the weights and gradients there were before it, in float64."""
    jobs = jobs_of(case, SHAPES, (dtype, dtype, "float32"), **options)
    for job in jobs:
        job.p.mul_(scale_p)
        job.g.mul_(scale_g)
    before = [(numbers(job.p), numbers(job.g)) for job in jobs]
    ready = prepared(jobs)
    step(ready, jobs)
    return jobs, ready.stats(), before


def check(found, **expected):
    """What was measured of every tensor is what these functions make of its weights and gradients."""
    jobs, stats, before = found
    for job, measured, (p, g) in zip(jobs, stats, before, strict=True):
        for name, of in expected.items():
            np.testing.assert_allclose(np.ravel(measured[name]), of(p, g), rtol=1e-6, err_msg=name)
        assert np.isfinite(numbers(job.p)).all()


@scales
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_weights_and_of_gradients(scale, dtype):
    check(stepped(LAMB, scale, 1.0, dtype, lr=0.1), weight_norm=lambda p, g: norm(p))
    check(stepped(LARS, scale, 1.0, dtype, lr=0.1), weight_norm=lambda p, g: norm(p))
    ratios = {"update_norm": lambda p, g: norm(g), "trust_ratio": lambda p, g: 1e-3 * norm(p) / norm(g)}
    check(stepped(LARS, 1.0, scale, dtype, lr=0.1), **ratios)


@scales
def test_of_updates_in_lamb_and_of_weights_in_adafactor(scale):
    """LAMB's of a decay that outweighs the gradient."""
    found = stepped(LAMB, scale, 1.0, lr=0.1, weight_decay=0.5, eps=1e30)
    check(found, update_norm=lambda p, g: norm(g / (np.abs(g) + 1e30) + 0.5 * p))
    for factored in ("last", False):
        found = stepped(ADAFACTOR, scale, 1.0, factored=factored, eps=(1e-30, 0.0))
        check(found, weight_rms=lambda p, g: np.sqrt(np.mean(p * p)))


@pytest.mark.parametrize(("scale", "most"), [(1e-25, 3e-26), (1e25, 3e24), (2e37, 1e-2)])
@pytest.mark.parametrize("bound", ["max_grad_norm", "max_grad_norm_per_tensor"])
def test_of_gradients_that_are_clipped(scale, most, bound):
    """Also by a divisor that is beyond float32."""
    jobs, _, before = stepped(LARS, 1.0, scale, lr=0.1, momentum=0.0, adapt=False, **{bound: most})
    of_all = norm([norm(g) for _, g in before])
    for job, (p, g) in zip(jobs, before, strict=True):
        moved = 0.1 * g * min(1, most / (norm(g) if bound.endswith("tensor") else of_all))
        np.testing.assert_allclose(numbers(job.p), np.float32(p) - moved, rtol=1e-5)


def test_a_tensor_of_least_numbers_has_a_norm():
    """Unlike one of zeros, whose ratio is that of the option."""
    least = float(np.finfo(np.float32).smallest_normal)
    for value, ratio in ((least, least * (1 + 1e-6)), (0.0, 7.0)):
        jobs = jobs_of(LAMB, [(40,)], lr=0.1, zero_norm_ratio=7.0)
        jobs[0].p.fill_(value)
        ready = prepared(jobs)
        step(ready, jobs, grads=[torch.ones(40, device=DEVICE)])
        np.testing.assert_allclose(np.ravel(ready.stats()[0]["trust_ratio"]), ratio, rtol=1e-6)
