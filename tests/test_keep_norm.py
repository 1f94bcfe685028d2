"""Weights keep their norm: over many steps, and where somebody else has changed it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import CASES
from numpy.testing import assert_allclose

import layerwise.torch
from layerwise.torch import Lamb, Lars

torch = pytest.importorskip("torch")
NAMES = [case.name for case in CASES if "keep_norm" in case.options]
each = pytest.mark.parametrize("name", NAMES)
engines = pytest.mark.parametrize("fused", [True, False], ids=["compiled", "rule"])
RATE = {"Lamb": 1e-2, "Lars": 10.0}


def norm_of(p: Any) -> float:
    return float(torch.linalg.vector_norm(p.detach().double()))


def stepped(opt: Any, p: Any, steps: int, seed: int = 0) -> list[float]:
    """The norm after each step."""
    draw, norms = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        p.grad = torch.randn(p.shape, generator=draw).to(p.dtype)
        opt.step()
        norms.append(norm_of(p))
    return norms


@each
@engines
@pytest.mark.parametrize("how", [True, "first"])
def test_over_many_steps(name: str, fused: bool, how: Any) -> None:
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(40, 30))
    before, start = norm_of(p), p.detach().clone()
    opt = getattr(layerwise.torch, name)([p], lr=RATE[name], keep_norm=how, fused=fused)
    norms = stepped(opt, p, 10_000 if fused else 500)
    assert_allclose(norms, before, rtol=1e-6)
    assert float(start.flatten() @ p.detach().flatten()) < 0.9 * before**2


@each
@engines
def test_back_to_the_first_norm(name: str, fused: bool) -> None:
    """Whatever happens to the weights in between, unlike where the norm before each step is kept."""
    for how in (True, "first"):
        p = torch.nn.Parameter(torch.arange(1.0, 13.0).reshape(4, 3))
        opt = getattr(layerwise.torch, name)([p], lr=RATE[name], keep_norm=how, fused=fused)
        [first] = stepped(opt, p, 1)
        with torch.no_grad():
            p *= 2
        assert_allclose(stepped(opt, p, 2), first if how == "first" else 2 * first, rtol=1e-6)


@each
def test_each_block_keeps_its_own(name: str) -> None:
    p = torch.nn.Parameter(torch.randn(3, 8, 5) * torch.tensor([1.0, 10.0, 0.1]).reshape(3, 1, 1))
    opt = getattr(layerwise.torch, name)([p], lr=RATE[name], keep_norm="first", blocks="each")
    before = torch.linalg.vector_norm(p.detach(), dim=(1, 2))
    stepped(opt, p, 20)
    assert_allclose(torch.linalg.vector_norm(p.detach(), dim=(1, 2)).numpy(), before.numpy(), rtol=1e-6)


@each
def test_what_is_zero_moves_and_then_keeps_its_norm(name: str) -> None:
    p = torch.nn.Parameter(torch.zeros(4, 3))
    opt = getattr(layerwise.torch, name)([p], lr=0.1, keep_norm="first")
    first, *others = stepped(opt, p, 5)
    assert first > 0
    assert_allclose(others, others[0], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("front", [Lamb, Lars])
def test_in_bfloat16_the_norm_does_not_drift(front: Any) -> None:
    """Each step's rounding shows in its norm, and no step's in another's; its variance adds some millionths to all."""
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(256, 256).bfloat16())
    before = norm_of(p)
    opt = front([p], lr=RATE[front.__name__], keep_norm="first", rounding="stochastic", seed=1)
    norms = np.array(stepped(opt, p, 10_000)) / before
    assert np.abs(norms - 1).max() < 1e-4  # one rounding of 65,536 numbers is 1.5e-5, and this the largest of 10,000
    assert abs(norms.mean() - 1) < 5e-6
    assert abs(norms[5000:].mean() - norms[:5000].mean()) < 1e-6
