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
    assert_allclose(norms, before, rtol=1e-6 if how == "first" else 5e-6)  # or else roundings add up
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


LONG = {"Lamb": {}, "Lars": {"trust_coefficient": 1.0}}  # with which a step is as long as lr times the weights


def of_jax(name: str, p: Any, steps: int, **options: Any) -> list[float]:
    jax, front = pytest.importorskip("jax"), pytest.importorskip("layerwise.jax")
    tx, x, draw, norms = getattr(front, name.lower())(**options), p.detach().numpy(), np.random.default_rng(0), []
    state, update = tx.init(x), jax.jit(tx.update)
    for _ in range(steps):
        moved, state = update(draw.normal(size=x.shape).astype(x.dtype), state, x)
        x = x + moved
        norms.append(float(np.linalg.norm(np.asarray(x, np.float64))))
    return norms


@each
@pytest.mark.parametrize("by", ["compiled", "rule", "jax"])
@pytest.mark.parametrize("how", [True, "first"])
@pytest.mark.parametrize("length", [1.0, 1e5, 1e9, 1e17])
def test_steps_of_any_length(name: str, by: str, how: Any, length: float) -> None:
    """Also far longer than the weights, beside which the sums of squares have no digit of these."""
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(40, 30) * 1e-9)
    before, options = norm_of(p), {**LONG[name], "keep_norm": how}
    if by == "jax":
        norms = of_jax(name, p, 3, learning_rate=length, **options)
    else:
        norms = stepped(getattr(layerwise.torch, name)([p], lr=length, fused=by == "compiled", **options), p, 3)
    assert_allclose(norms, before, rtol=1e-5 if by == "jax" else 1e-6)


@each
@engines
@pytest.mark.parametrize("how", [True, "first"])
@pytest.mark.parametrize("close", [0.0, 1e-6, 1e-3])
def test_steps_that_all_but_cancel_the_weights(name: str, fused: bool, how: Any, close: float) -> None:
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(40, 30).sign())
    p.grad = p.detach() * (1 + close * torch.rand(40, 30))
    before, start = norm_of(p), p.detach().clone()
    opt = getattr(layerwise.torch, name)([p], lr=1 - close, keep_norm=how, fused=fused, **LONG[name])
    opt.step()
    assert_allclose(norm_of(p), before, rtol=1e-6)
    if name == "Lars" and not close:  # to the last digit, unlike LAMB's
        assert_allclose(p.detach().numpy(), start.numpy(), rtol=1e-6)


@each
@engines
def test_zeros_come_back_to_the_first_norm(name: str, fused: bool) -> None:
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(40, 30))
    opt = getattr(layerwise.torch, name)([p], lr=1e-3, keep_norm="first", fused=fused)
    [first] = stepped(opt, p, 1)
    p.data.zero_()
    assert_allclose(stepped(opt, p, 2), first, rtol=1e-6)


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
