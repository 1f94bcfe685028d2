"""Norms of tensors whose squares no float32 can hold: summed as if in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import case_of
from engines.worlds import make_job, mapped, numbers
from gpu.world import DEVICE, GPU, SMALL

from layerwise import engines
from layerwise.engines.gpu.engine import GpuEngine

SHAPES = [(20, 13), (40,), (4, 3, 2), ()]
LAMB, LARS, ADAFACTOR = (case_of(name) for name in ("Lamb", "Lars", "Adafactor"))
scales = pytest.mark.parametrize("scale", [1e-33, 1e-25, 1.0, 1e25, 1e36])
dtypes = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def stepped(case, h, scale_p, scale_g, dtype):
    """The stats of a step, with the weights and gradients there were before it, in float64."""
    kinds = dtype, dtype, "float32"
    jobs = [mapped(make_job(case, h, shape, (), i, kinds), GPU.array) for i, shape in enumerate(SHAPES)]
    for job in jobs:
        job.p.mul_(scale_p)
        job.g.mul_(scale_g)
    before = [(numbers(job.p), numbers(job.g)) for job in jobs]
    ready = GpuEngine(None, SMALL).prepare([engines.Job(j.rule, j.h, j.p, j.state) for j in jobs])
    ready.step([job.g for job in jobs], [job.now for job in jobs])
    return jobs, ready.stats(), before


def close(measured, expected):
    np.testing.assert_allclose(np.ravel(measured), np.ravel(expected), rtol=1e-6)


@scales
@dtypes
def test_weights_in_lamb_and_lars(scale, dtype):
    for case in (LAMB, LARS):
        _, stats, before = stepped(case, case.hyper(lr=0.1), scale, 1.0, dtype)
        for measured, (p, _) in zip(stats, before, strict=True):
            close(measured["weight_norm"], np.linalg.norm(p))


@scales
@dtypes
def test_gradients_in_lars(scale, dtype):
    _, stats, before = stepped(LARS, LARS.hyper(lr=0.1), 1.0, scale, dtype)
    for measured, (p, g) in zip(stats, before, strict=True):
        close(measured["update_norm"], np.linalg.norm(g))
        close(measured["trust_ratio"], 1e-3 * np.linalg.norm(p) / np.linalg.norm(g))


@scales
def test_updates_in_lamb(scale):
    """Of a decay that outweighs the gradient."""
    jobs, stats, before = stepped(LAMB, LAMB.hyper(lr=0.1, weight_decay=0.5, eps=1e30), scale, 1.0, "float32")
    for job, measured, (p, g) in zip(jobs, stats, before, strict=True):
        norm = np.linalg.norm(g / (np.abs(g) + 1e30) + 0.5 * p)
        close(measured["update_norm"], norm)
        assert np.isfinite(numbers(job.p)).all()


@scales
@pytest.mark.parametrize("factored", ["last", False])
def test_weights_in_adafactor(scale, factored):
    h = ADAFACTOR.hyper(factored=factored, eps=(1e-30, 0.0))
    jobs, stats, before = stepped(ADAFACTOR, h, scale, 1.0, "float32")
    for job, measured, (p, _) in zip(jobs, stats, before, strict=True):
        close(measured["weight_rms"], np.sqrt(np.mean(p * p)))
        assert np.isfinite(numbers(job.p)).all()


@pytest.mark.parametrize("scale", [1e-25, 1e25])
@pytest.mark.parametrize("bound", ["max_grad_norm", "max_grad_norm_per_tensor"])
def test_gradients_that_are_clipped(scale, bound):
    h = LARS.hyper(lr=0.1, momentum=0.0, adapt=False, **{bound: scale / 4})
    jobs, _, before = stepped(LARS, h, 1.0, scale, "float32")
    norms = [np.linalg.norm(g) for _, g in before]
    for job, (p, g), own in zip(jobs, before, norms, strict=True):
        norm = own if bound.endswith("tensor") else np.linalg.norm(norms)
        moved = 0.1 * g * min(1, scale / 4 / norm)
        np.testing.assert_allclose(numbers(job.p), np.float32(p) - moved, rtol=1e-5)


def test_a_tensor_of_least_numbers_has_a_norm():
    """Unlike one of zeros, whose ratio is that of the option."""
    least = float(np.finfo(np.float32).smallest_normal)
    for value, ratio in ((least, None), (0.0, 7.0)):
        job = mapped(make_job(LAMB, LAMB.hyper(lr=0.1, zero_norm_ratio=7.0), (40,), (), 0), GPU.array)
        job.p.fill_(value)
        ready = GpuEngine(None, SMALL).prepare([engines.Job(job.rule, job.h, job.p, job.state)])
        ready.step([torch.ones(40, device=DEVICE)], [job.now])
        [measured] = ready.stats()
        close(measured["trust_ratio"], least * (1 + 1e-6) if ratio is None else ratio)
