"""Derivatives through steps, and many optimizers at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import CASES
from jax_front.front import FRONTS, NAMES, close, gradients, made, mainly, taken, tree

from layerwise.jax import _drive

pytestmark = pytest.mark.thinned(1, 2)

each = pytest.mark.parametrize("name", NAMES)
SHAPES = {"w": (3, 2), "b": (2,)}
# A step has a derivative also at zero under these.
LARGER = {"eps_root": 1e-4, "eps": (1e-4, 1e-3)}  # so that differences show the slope
SMOOTH = {
    case.name: {**{key: LARGER[key] for key in case.smooth}, **taken(case.name, {"dtype_momentum": "float64"})}
    for case in CASES
}


def after(name, hyperparameters, start, steps=3, **options):
    """A loss after some steps, by the hyperparameters and where they started."""
    opt = made(name, **SMOOTH[name], **options, **hyperparameters)
    x, y = tree(7, {"x": (4, 3), "y": (4, 2)}, "float64").values()

    def loss(params):
        return jnp.mean((jnp.tanh(x @ params["w"] + params["b"]) - y) ** 2)

    def one(carry, _):
        params, state = carry
        updates, state = jax.jit(opt.update)(jax.grad(loss)(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(one, (start, opt.init(start)), None, length=steps)
    return loss(params)


NUMBERS = {
    "learning_rate": 0.1, "b1": 0.8, "b2": 0.9, "weight_decay": 0.1, "momentum": 0.8, "trust_coefficient": 0.5,
    "weight_decay_rate": 0.05, "decay_rate": 0.7,
}  # fmt: skip
RATES = {name: taken(name, NUMBERS) for name in NAMES}


def slopes(f, x, step=1e-6):
    """Central differences of f along each number of a tree."""
    leaves, form = jax.tree.flatten(x)
    found = []
    for i, leaf in enumerate(leaves):
        flat = np.asarray(leaf, np.float64).ravel()
        each_slope = []
        for k in range(flat.size):
            ends = []
            for sign in (1, -1):
                moved = flat.copy()
                moved[k] += sign * step
                ends.append(
                    float(
                        f(form.unflatten([*leaves[:i], jnp.asarray(moved.reshape(np.shape(leaf))), *leaves[i + 1 :]]))
                    )
                )
            each_slope.append((ends[0] - ends[1]) / (2 * step))
        found.append(np.reshape(each_slope, np.shape(leaf)))
    return form.unflatten(found)


def start(zero=False):
    params = tree(0, SHAPES, "float64")
    params["b"] = jnp.zeros(2) if zero else params["b"]
    return params


@pytest.fixture
def sizes(request, monkeypatch):
    """Tensors as they are, and as if they were large."""
    if request.param == "large":
        monkeypatch.setattr(_drive, "LARGE", 1)


def mostly(size):
    """Try these sizes for every change, and the others in the slow tests."""
    given = [one if one == size else pytest.param(one, marks=pytest.mark.slow) for one in ("small", "large")]
    return pytest.mark.parametrize("sizes", given, indirect=True)


@mostly("large")
@mainly("Adafactor")
def test_hypergradients_are_the_slopes(name, jax64, sizes):
    rates = {key: jnp.asarray(value) for key, value in RATES[name].items()}
    f = jax.jit(lambda rates: after(name, rates, start()))
    found = jax.jit(jax.grad(f))(rates)
    wanted = slopes(f, rates)
    assert all(abs(x) > 1e-6 for x in jax.tree.leaves(wanted))
    close(found, wanted, 1e-6)


@mostly("small")
@mainly("Lamb")
def test_gradients_through_steps_are_the_slopes(name, jax64, sizes):
    f = jax.jit(lambda params: after(name, RATES[name], params))
    close(jax.jit(jax.grad(f))(start()), slopes(f, start()), 1e-6)


# At zero the root of a second moment has no slope, unless an option gives it one.
@pytest.mark.parametrize(
    "name", [case.name for case in CASES if case.smooth or "exp_avg_sq" not in case.rule.State._fields]
)
def test_gradients_are_finite_at_zero(name, jax64):
    """A parameter that is zero, and gradients that are: there is no slope of a norm, and none is made up."""
    grad = jax.jit(jax.grad(lambda params: after(name, RATES[name], params)))
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grad(start(zero=True))))

    def once(g):
        params = {"w": jnp.zeros((3, 2)), "b": jnp.ones(2)}
        opt = made(name, **SMOOTH[name])
        updates, _ = jax.jit(opt.update)(g, opt.init(params), params)
        return sum(jnp.sum(u) for u in jax.tree.leaves(updates))

    for zero in ({"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}, {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}):
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.jit(jax.grad(once))(zero)))


# A rule that cannot be clipped by norm divides by the gradient's length, which has no slope where that is 0.
@pytest.mark.parametrize("name", [case.name for case in CASES if case.smooth and "max_grad_norm" in case.options])
def test_slopes_at_zero(name, jax64):
    """With eps_root, or eps₁, a step has a slope also where the gradient is zero."""

    def once(g):
        params = {"b": jnp.asarray([1.0, -2.0])}
        opt = FRONTS[name](0.1, **SMOOTH[name], **taken(name, {"adapt": False, "clipping_threshold": None}))
        updates, _ = jax.jit(opt.update)(g, opt.init(params), params)
        return updates["b"] @ jnp.asarray([1.0, 3.0])

    zero = {"b": jnp.zeros(2)}
    wanted = slopes(jax.jit(once), zero, 1e-7)
    assert np.abs(wanted["b"]).min() > 1e-2
    close(jax.jit(jax.grad(once))(zero), wanted, 1e-5)


@mainly("Lars")
def test_forward_mode_agrees(name, jax64):
    f = jax.jit(lambda lr: after(name, {**RATES[name], "learning_rate": lr}, start()))
    np.testing.assert_allclose(jax.jit(jax.jacfwd(f))(0.1), jax.jit(jax.grad(f))(0.1), rtol=1e-9)


@mainly("Lamb")
def test_vmap_over_learning_rates(name, jax64):
    rates = jnp.asarray([0.0, 0.01, 0.1])
    f = lambda lr: after(name, {"learning_rate": lr}, start())  # noqa: E731
    alone = jax.jit(f)
    np.testing.assert_allclose(jax.jit(jax.vmap(f))(rates), [alone(lr) for lr in rates], rtol=1e-12)


@pytest.mark.needs("max_grad_norm")
@mostly("large")
@mainly("Lars")
def test_vmap_over_an_ensemble(name, sizes):
    """Every member has its own norms, statistics and count."""
    members, grads = [tree(i) for i in range(3)], [gradients(2)[i] for i in (0, 1, 0)]
    opt = made(name, max_grad_norm=0.5)
    stacked, stacked_grads = (jax.tree.map(lambda *x: jnp.stack(x), *one) for one in (members, grads))
    state = jax.vmap(opt.init)(stacked)
    updates, state = jax.jit(jax.vmap(opt.update))(stacked_grads, state, stacked)
    assert state.count.shape == (3,)
    for i, (params, g) in enumerate(zip(members, grads, strict=True)):
        alone, _ = jax.jit(opt.update)(g, opt.init(params), params)
        close(jax.tree.map(lambda x, i=i: x[i], updates), alone)
