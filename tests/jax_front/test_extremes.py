"""Numbers whose squares float32 cannot hold have norms all the same, in whichever way a sum is taken."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import apis
from contract.test_extremes import CASES, compare, numbers

from layerwise.jax import _drive, _norms

pytestmark = pytest.mark.thinned(1, 2)

SHAPES = {"scalar": (), "vector": (5,), "matrix": (70, 60), "other": (70, 60)}
WAYS = ["float64", "large", "columns"]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Each way to take a sum."""
    if request.param == "large":
        monkeypatch.setattr(_drive, "LARGE", 1)
    if request.param == "columns":
        monkeypatch.setattr(_norms, "has_float64", lambda: False)
    _forget()
    yield request.param
    _forget()


def _forget():
    """Forget the programs that take sums in another way."""
    _norms.sum_squares.clear_cache()
    apis._program.cache_clear()


def check(name, weights, gradients):
    compare(apis.Jax(), None, name, CASES[name], numbers(1, weights, SHAPES), numbers(2, gradients, SHAPES))


# Each way and each size is tried with one optimizer: they differ in how sums are taken, and not in what follows.
OF_WEIGHTS = [
    ("Lamb", 1e30, "large"),
    ("Lars", 1e-30, "large"),
    ("Adafactor", 1e-30, "float64"),
    ("Adafactor", 1e25, "columns"),
    ("Adafactor", 1e30, "columns"),
]
OF_GRADIENTS = [("Lars", 1e-30, "float64"), ("Lars", 1e30, "columns")]


@pytest.mark.parametrize(("name", "size", "way"), OF_WEIGHTS, indirect=["way"])
def test_weights_of_any_size_move_by_their_norm(name, size, way):
    check(name, size, 1.0)


@pytest.mark.parametrize(("name", "size", "way"), OF_GRADIENTS, indirect=["way"])
def test_gradients_of_any_size_have_a_norm_in_lars(name, size, way):
    check(name, 1.0, size)


@pytest.mark.parametrize("entries", [1, None], ids=["a_root", "a_sum"])
def test_norms_are_finite_and_not_0_and_have_slopes(way, entries):
    norm = jax.jit(lambda x: _norms.length(_norms.sum_squares(x, (0,), entries))[0])
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


def test_a_long_sum_of_float32_has_the_digits_of_float64():
    if not _norms.has_float64():
        pytest.skip("this JAX has no float64 beside float32")
    x = np.random.default_rng(0).random(1 << 20, np.float32)
    found = _norms.length(_norms.sum_squares(jnp.asarray(x), (0,), 1))[0]
    assert float(found) == pytest.approx(np.linalg.norm(x.astype(np.float64)), rel=1e-7)


def test_sums_of_columns_are_those_of_the_numbers():
    for size in (1e-30, 1.0, 1e30):
        columns = [_norms.sum_squares(jnp.full(9, size * k, jnp.float32), (0,), None) for k in (1, 2)]
        assert float(_norms.length(columns[0] + columns[1])[0]) == pytest.approx(size * 45**0.5, rel=1e-6)
