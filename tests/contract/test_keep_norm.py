"""With `keep_norm`, weights keep their norm: over many steps, by steps of any length, and where others change it."""

from __future__ import annotations

import numpy as np
import pytest
from cases import CASES, case_of
from contract.apis import Torch, arrays
from numpy.testing import assert_allclose

each = pytest.mark.parametrize("name", [case.name for case in CASES if "keep_norm" in case.options])
hows = pytest.mark.parametrize("how", [True, "first"])
RATE = 1e-2
W = {"w": (40, 30)}
pytestmark = pytest.mark.offers("functions")


def small(api):
    """What rounding may change; where updates are returned, it is done for a second time when they are added."""
    return 1e-6 if api.has("in_place") else 1e-5


def norm(w):
    return float(np.linalg.norm(w))


def stepped(run, steps):
    """The norm after each step."""
    draw, norms = np.random.default_rng(0), []
    for _ in range(steps):
        run.step({name: draw.normal(size=w.shape) for name, w in run.weights().items()})
        norms.append(norm(run.weights()["w"]))
    return norms


def changed(run, w):
    """The same run, of weights that somebody else has written."""
    other = run.api.make(run.name, {"w": w}, dtype=run.dtype, **run.options)
    other.load(run.save())
    return other


@each
@hows
@pytest.mark.thinned(1, 2)
def test_over_many_steps_the_norm_does_not_drift(api, engine, name, how):
    run = api.make(name, arrays(0, W), dtype="float32", engine=engine, lr=RATE, **case_of(name).relative, keep_norm=how)
    start = run.weights()["w"]
    norms = stepped(run, 300)
    roundings = 1e-6 if how == "first" else 5e-6  # or else they add up, of which optax's are one more
    assert_allclose(norms, norm(start), rtol=roundings if api.has("in_place") else 4 * roundings)
    assert float(np.vdot(start, run.weights()["w"])) < 0.99 * norm(start) ** 2


@each
@hows
def test_changes_of_weights_by_others_are_kept_or_undone(api, engine, name, how):
    """True keeps the norm before each step, and "first" that before the first."""
    run = api.make(name, arrays(1, W), dtype="float32", engine=engine, lr=RATE, **case_of(name).relative, keep_norm=how)
    [first] = stepped(run, 1)
    assert_allclose(first, norm(arrays(1, W)["w"]), rtol=small(api))
    doubled = changed(run, 2 * run.weights()["w"])
    assert_allclose(stepped(doubled, 2), first if how == "first" else 2 * first, rtol=small(api))
    if how == "first":
        assert_allclose(stepped(changed(run, np.zeros((40, 30))), 2), first, rtol=small(api))


@each
@hows
@pytest.mark.parametrize("length", [1.0, 1e9, 1e17])
def test_steps_of_any_length_keep_the_norm(api, engine, name, how, length):
    """Also far longer than the weights, beside which the sums of squares have no digit of these."""
    w = {"w": 1e-9 * arrays(0, W)["w"]}
    run = api.make(name, w, dtype="float32", engine=engine, lr=length, keep_norm=how, **case_of(name).relative)
    assert_allclose(stepped(run, 3), norm(w["w"]), rtol=small(api))


@each
@hows
@pytest.mark.offers("engines")
@pytest.mark.parametrize("close", [0.0, 1e-6, 1e-3])
def test_steps_that_all_but_cancel_the_weights_keep_the_norm(api, engine, name, how, close):
    w = np.sign(arrays(0, W)["w"])
    options = {"lr": 1 - close, "keep_norm": how, **case_of(name).relative}
    run = api.make(name, {"w": w}, dtype="float32", engine=engine, **options)
    run.step({"w": w * (1 + close * np.random.default_rng(1).random(w.shape))})
    assert_allclose(norm(run.weights()["w"]), norm(w), rtol=1e-6)
    if name == "Lars" and not close:  # to the last digit, unlike LAMB's
        assert_allclose(run.weights()["w"], w, rtol=1e-6)


@each
@pytest.mark.offers("blocks")
def test_each_block_keeps_its_own_norm(api, name):
    w = arrays(0, {"w": (3, 8, 5)})["w"] * np.array([1.0, 10.0, 0.1]).reshape(3, 1, 1)
    run = api.make(
        name, {"w": w}, dtype="float32", lr=RATE, **case_of(name).relative, keep_norm="first", blocks={"w": "each"}
    )
    stepped(run, 20)
    of_each = [np.linalg.norm(one.reshape(3, -1), axis=1) for one in (w, run.weights()["w"])]
    assert_allclose(*of_each, rtol=1e-6)


@each
def test_zeros_move_once_and_then_keep_their_norm(api, name):
    first, *others = stepped(api.make(name, {"w": np.zeros((4, 3))}, dtype="float32", lr=0.1, keep_norm="first"), 5)
    assert first > 0
    assert_allclose(others, others[0], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Lamb", pytest.param("Lars", marks=pytest.mark.repeats)])  # the same, without kernels
def test_in_bfloat16_the_norm_does_not_drift(name):
    """Each step's rounding shows in its norm, and no step's in another's; its variance adds some millionths to all."""
    w, options = arrays(0, {"w": (256, 256)}), {"keep_norm": "first", "rounding": "stochastic", "seed": 1}
    torch = pytest.importorskip("torch")
    opt = Torch().make(name, w, dtype="bfloat16", lr=RATE, **case_of(name).relative, **options).opt
    [p], draw, norms = opt.param_groups[0]["params"], torch.Generator().manual_seed(0), []
    before = float(p.detach().double().norm())
    for _ in range(10_000):
        p.grad = torch.randn(p.shape, generator=draw).bfloat16()
        opt.step()
        norms.append(float(p.detach().double().norm()) / before)
    norms = np.array(norms)
    assert np.abs(norms - 1).max() < 1e-4  # one rounding of 65,536 numbers is 1.5e-5, and this the largest of 10,000
    assert abs(norms.mean() - 1) < 5e-6
    assert abs(norms[5000:].mean() - norms[:5000].mean()) < 1e-6
