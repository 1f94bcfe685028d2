"""Steps have derivatives, forwards and backwards, and many optimizers step at once under vmap."""

from __future__ import annotations

from functools import cache

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import CASES
from jax_front.front import BUSY, FRONTS, close, made, mainly, taken, tree

from layerwise.jax import _drive

pytestmark = pytest.mark.thinned(1, 2)

SHAPES = {"w": (3, 2)}


def larger(epsilon):
    """So that differences show the slope."""
    return tuple(map(larger, epsilon)) if isinstance(epsilon, tuple) else max(epsilon, 1e-4)


# A step has a derivative also at zero under these.
SMOOTH = {
    case.name: {
        **{key: larger(value) for key, value in case.smooth.items()},
        **taken(case.name, {"dtype_momentum": "float64"}),
    }
    for case in CASES
}
NUMBERS = {
    "learning_rate": 0.1, "b1": 0.8, "b2": 0.9, "weight_decay": 0.1, "momentum": 0.8, "trust_coefficient": 0.5,
    "weight_decay_rate": 0.05, "decay_rate": 0.7,
}  # fmt: skip


def rates(name):
    return {key: jnp.asarray(value) for key, value in taken(name, NUMBERS).items()}


@cache
def after(name, large=False):
    """The loss after some steps by the hyperparameters and where they started, and its gradient."""
    x, y = tree(7, {"x": (4, 3), "y": (4, 2)}, "float64").values()

    def loss(params):
        return jnp.mean((jnp.tanh(x @ params["w"]) - y) ** 2)

    def found(rates, start):
        opt = FRONTS[name](**{**BUSY[name], **SMOOTH[name], **rates})

        def one(carry, _):
            params, state = carry
            updates, state = jax.jit(opt.update)(jax.grad(loss)(params), state, params)
            return (optax.apply_updates(params, updates), state), None

        (params, _), _ = jax.lax.scan(one, (start, opt.init(start)), None, length=2)
        return loss(params)

    return found, jax.jit(jax.grad(found, argnums=(0, 1)))


def start(zero=False):
    return tree(0, SHAPES, "float64", 0.0 if zero else 1.0)


@pytest.mark.parametrize("large", [True, pytest.param(False, marks=pytest.mark.slow)])
@mainly("Adafactor")
def test_derivatives_are_the_slopes_forwards_and_backwards(name, large, jax64, monkeypatch):
    """By hyperparameters and by parameters; also of large tensors, where numbers are computed again."""
    monkeypatch.setattr(_drive, "LARGE", 1 if large else _drive.LARGE)
    f, gradient = after(name, large)
    given, form = jax.flatten_util.ravel_pytree((rates(name), start()))
    along = jnp.asarray(np.random.default_rng(0).normal(size=given.shape))
    ahead = jax.jit(lambda x: jax.jvp(lambda x: f(*form(x)), (x,), (along,)))
    ends = [ahead(given + sign * along)[0] for sign in (1e-6, -1e-6)]
    forwards, backwards = ahead(given)[1], jax.flatten_util.ravel_pytree(gradient(*form(given)))[0]
    assert np.abs(backwards).min() > 1e-6
    np.testing.assert_allclose(backwards @ along, forwards, rtol=1e-9)
    np.testing.assert_allclose(forwards, (ends[0] - ends[1]) / 2e-6, rtol=1e-6)


# At zero the root of a second moment has no slope, unless an option gives it one.
@pytest.mark.parametrize(
    "name", [case.name for case in CASES if case.smooth or "exp_avg_sq" not in case.rule.State._fields]
)
def test_gradients_are_finite_at_zero(name, jax64):
    """A parameter that is zero, and gradients that are: there is no slope of a norm, and none is made up."""
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(after(name)[1](rates(name), start(zero=True))))

    def once(g):
        params = {"w": jnp.zeros((3, 2)), "b": jnp.ones(2)}
        opt = made(name, **SMOOTH[name])
        updates, _ = opt.update(g, opt.init(params), params)
        return sum(jnp.sum(u) for u in jax.tree.leaves(updates))

    slope = jax.jit(jax.grad(once))
    for size in (0.0, 1.0):
        assert all(
            np.isfinite(x).all() for x in jax.tree.leaves(slope({"w": jnp.full((3, 2), size), "b": jnp.zeros(2)}))
        )


@pytest.mark.needs("max_grad_norm")
@mainly("Lars")
def test_every_member_of_an_ensemble_has_its_own_rate_norms_and_count(name, monkeypatch):
    monkeypatch.setattr(_drive, "LARGE", 1)

    def stepped(lr, params, g):
        opt = FRONTS[name](**{**BUSY[name], "max_grad_norm": 0.5, "learning_rate": lr})
        return opt.update(g, opt.init(params), params)

    members = [(jnp.float32(lr), tree(i, SHAPES), tree(10 + i, SHAPES)) for i, lr in enumerate((0.1, 0.0, 0.01))]
    updates, state = jax.jit(jax.vmap(stepped))(*jax.tree.map(lambda *x: jnp.stack(x), *members))
    assert state.count.shape == (3,)
    alone = jax.jit(stepped)
    for i, member in enumerate(members):
        close(jax.tree.map(lambda x, i=i: x[i], updates), alone(*member)[0])
