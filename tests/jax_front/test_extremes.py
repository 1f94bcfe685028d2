"""Numbers whose squares float32 cannot hold have norms all the same, as they have them in the NumPy front."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_front.front import FRONTS

import layerwise.numpy
from layerwise.jax import _drive, _norms

pytestmark = pytest.mark.thinned(1, 2)

SHAPES = {"scalar": (), "vector": (5,), "matrix": (70, 60), "other": (70, 60)}
CASES = {
    "Lamb": ({"learning_rate": 0.01}, {"lr": 0.01}),
    "Lars": (
        {"learning_rate": 1.0, "trust_coefficient": 0.01},
        {"lr": 1.0, "trust_coefficient": 0.01, "norm": "decayed"},
    ),
    "Adafactor": (
        {"learning_rate": 0.01, "eps": (1e-30, 0.0), "min_dim_size_to_factor": 0, "factored": "last"},
        {"lr": 0.01, "scale_parameter": True, "eps": (1e-30, 0.0)},
    ),
}
WAYS = ["short", "branch", "large", "accelerator"]


def numbers(seed, size, dtype="float32"):
    draw = np.random.default_rng(seed)
    return {key: np.asarray(draw.normal(size=shape) * size, dtype) for key, shape in SHAPES.items()}


def by_numpy(name, weights, grads):
    """Return the movement of a step of the rule in float64."""
    moved = {key: np.asarray(w, np.float64) for key, w in weights.items()}
    before = {key: w.copy() for key, w in moved.items()}
    opt = getattr(layerwise.numpy, name)(engine="rule", **CASES[name][1])
    opt.step_all(moved, {key: np.asarray(g, np.float64) for key, g in grads.items()})
    return {key: moved[key] - before[key] for key in moved}


def check(name, weights, grads, **options):
    opt = FRONTS[name](**CASES[name][0], **options)
    params = {key: jnp.asarray(w) for key, w in weights.items()}
    found, _ = jax.jit(opt.update)(grads, opt.init(params), params)
    for key, wanted in by_numpy(name, weights, grads).items():
        most = np.abs(wanted).max()
        assert most > 1e-3 * np.abs(weights[key]).max()  # or there is nothing to compare
        np.testing.assert_allclose(np.asarray(found[key], np.float64) / most, wanted / most, rtol=0, atol=2e-5)


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Each way to take a sum."""
    if request.param != "short":
        monkeypatch.setattr(_norms, "SHORT", 0)
    if request.param == "large":
        monkeypatch.setattr(_drive, "LARGE", 1)
    if request.param == "accelerator":
        monkeypatch.setattr(_norms, "branches", lambda: False)
    _norms._of_alike.clear_cache()
    yield request.param
    _norms._of_alike.clear_cache()


# Each way and each size is tried with one optimizer: they differ in how sums are taken, and not in what follows.
OF_WEIGHTS = [
    ("Lamb", 1e30, "large"),
    ("Lars", 1e-30, "large"),
    ("Adafactor", 1e-30, "short"),
    ("Adafactor", 1e25, "branch"),
    ("Adafactor", 1e30, "accelerator"),
]
OF_GRADIENTS = [("Lars", 1e-30, "short"), ("Lars", 1e30, "branch")]


@pytest.mark.parametrize(("name", "size", "way"), OF_WEIGHTS, indirect=["way"])
def test_weights_of_any_size_move_by_their_norm(name, size, way):
    check(name, numbers(1, size), numbers(2, 1.0))


@pytest.mark.parametrize(("name", "size", "way"), OF_GRADIENTS, indirect=["way"])
def test_gradients_of_any_size_have_a_norm_in_lars(name, size, way):
    check(name, numbers(1, 1.0), numbers(2, size))


def test_norms_are_finite_and_not_0_and_have_slopes(way):
    norm = jax.jit(lambda x: _norms.length(_norms.measured([x], [_norms.Wanted((0,), 1)])[0])[0])
    slope, each = jax.jit(jax.grad(norm)), jax.jit(jax.vmap(norm))
    for size in (1e-37, 1e-25, 1.0, 1e25, 3e38):
        x = jnp.full(50, size, jnp.float32)
        found = float(norm(x))
        assert found == pytest.approx(min(size * 50**0.5, float(np.finfo(np.float32).max)), rel=1e-6)
        if size < 1e38:
            np.testing.assert_allclose(slope(x), np.full(50, 50**-0.5), rtol=1e-5)
            np.testing.assert_allclose(each(jnp.stack([x, jnp.ones(50)])), [found, 50**0.5], rtol=1e-6)
    assert float(norm(jnp.zeros(50))) == 0
    assert float(norm(jnp.full(50, jnp.inf))) == np.inf
    assert np.isnan(float(norm(jnp.full(50, jnp.nan))))
