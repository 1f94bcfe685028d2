"""A step: the formulas' numbers under every option, optax's under optax's, and what a step must not cost."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import CASES
from draws import seeds
from jax_front.front import FRONTS, LITTLE, NAMES, THEIRS, arguments, close, gradients, made, mainly, run, tree
from oracles import data
from parity import test_optax as parity
from parity.live import Draw, tensors
from xla import compiled

from layerwise.jax import _drive

pytestmark = pytest.mark.thinned(1, 2)

exact_b2 = parity.exact_b2
each = pytest.mark.parametrize("name", NAMES)
SEEDS = seeds(1, 4)
with_theirs = pytest.mark.parametrize("name", THEIRS)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.kinds("rows and columns", "factored", "numbers of a layer")
@pytest.mark.thinned(1)
def test_large_tensors_follow_the_formulas_with_drawn_options(case, seed, jax64, monkeypatch):
    """As the contract's tests say it of small ones."""
    monkeypatch.setattr(_drive, "LARGE", 1)
    options = case.drawn(seed)
    params, grads = data(seed)
    oracle, opt = case.reference(**options), FRONTS[case.name](**arguments(case, options))
    named = {str(i): jnp.asarray(p) for i, p in enumerate(params)}
    expected, state = {k: np.asarray(p) for k, p in named.items()}, opt.init(named)
    update = compiled(jax.jit(opt.update), named, state, named)
    for gs in grads:
        g = {str(i): jnp.asarray(one) for i, one in enumerate(gs)}
        updates, state = update(g, state, named)
        named = optax.apply_updates(named, updates)
        expected = oracle.step(expected, {k: np.asarray(one) for k, one in g.items()})
        close(named, expected, 1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@with_theirs
@pytest.mark.thinned(1, 2)
def test_optax_with_drawn_options(name, seed, jax64, exact_b2):
    """The same call, and the same numbers."""
    options, _ = parity.drawn(name.lower(), Draw(seed))
    params, grads = tensors()
    (ours, state), (theirs, _) = (
        run(make(**options), jax.tree.map(jnp.asarray, params), [jax.tree.map(jnp.asarray, g) for g in grads])
        for make in (FRONTS[name], THEIRS[name])
    )
    close(ours, theirs, 1e-12)
    assert int(state.count) == len(grads)


@mainly("Adafactor", of=THEIRS)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow), "bfloat16"])
def test_updates_have_the_dtype_and_the_size_of_optax_s(name, dtype, jax64):
    shapes = {"w": (5, 4), "b": (3,), "large": (129, 130)}
    params, grads = tree(0, shapes, dtype), gradients(2, shapes, dtype)
    lr = 1e-2 if dtype == "bfloat16" else 1e-6
    (ours, _), (theirs, _) = (
        jax.jit(opt.update)(grads[0], opt.init(params), params) for opt in (FRONTS[name](lr), THEIRS[name](lr))
    )
    assert jax.tree.map(lambda x: x.dtype, ours) == jax.tree.map(lambda x: x.dtype, theirs)
    # Of a step so much smaller than the parameter: no difference of two parameters could be so exact.
    tolerance = {"float64": 1e-6, "float32": 3e-5}.get(dtype, 2e-2)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())


@with_theirs
def test_the_signature_begins_with_optax_s(name):
    ours = list(inspect.signature(FRONTS[name]).parameters.values())
    theirs = list(inspect.signature(THEIRS[name]).parameters.values())
    assert [(p.name, p.default, p.kind) for p in ours[: len(theirs)]] == [(p.name, p.default, p.kind) for p in theirs]
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in ours[len(theirs) :])


@mainly("Lamb")
def test_one_compilation_for_all_steps(name):
    opt, params, traced = made(name), tree(0, LITTLE), []

    @jax.jit
    def step(params, state, g):
        traced.append(1)
        updates, state = jax.jit(opt.update)(g, state, params)
        return optax.apply_updates(params, updates), state

    state = opt.init(params)
    for g in gradients(3, LITTLE):
        params, state = step(params, state, g)
    assert traced == [1]
    assert step._cache_size() == 1


@mainly("Adafactor")
def test_donation(name):
    opt, params, grads = made(name), tree(0, LITTLE), gradients(2, LITTLE)
    expected, _ = run(opt, params, grads)

    def step(params, state, g):
        updates, state = jax.jit(opt.update)(g, state, params)
        return optax.apply_updates(params, updates), state

    program = compiled(jax.jit(step, donate_argnums=(0, 1)), params, opt.init(params), params)
    assert program.memory_analysis().alias_size_in_bytes >= sum(x.nbytes for x in jax.tree.leaves(opt.init(params)))
    given, state = jax.tree.map(jnp.copy, params), opt.init(params)
    old = [*jax.tree.leaves(given), *jax.tree.leaves(state)]
    for g in grads:
        given, state = program(given, state, g)
    assert all(x.is_deleted() for x in old)
    close(given, expected)


@mainly("Lars")
def test_the_count_stays_at_its_largest(name):
    opt, params = made(name), tree(0, LITTLE)
    most = jnp.asarray(jnp.iinfo(jnp.int32).max, jnp.int32)
    updates, state = jax.jit(opt.update)(params, opt.init(params)._replace(count=most), params)
    assert int(state.count) == int(most)
    assert all(np.all(np.isfinite(u)) for u in jax.tree.leaves(updates))


@each
def test_state_is_float32_for_low_precision_and_follows_high(name, jax64):
    for dtype, expected in (("bfloat16", "float32"), ("float16", "float32"), ("float64", "float64")):
        state = made(name).init(tree(0, dtype=dtype))
        found = {x.dtype.name for x in jax.tree.leaves(state._replace(count=None))}
        # optax's default for the momentum of adafactor is float32 whatever the parameters are.
        assert found == {expected, "float32"} if name == "Adafactor" else found == {expected}


@mainly("Lamb")
def test_low_precision_is_rounded_once(name, jax64):
    params, [g] = tree(0, LITTLE, "bfloat16"), gradients(1, LITTLE, "bfloat16")
    exact = jax.tree.map(lambda x: x.astype(jnp.float64), params)
    opt = made(name)
    updates, _ = jax.jit(opt.update)(g, opt.init(params), params)
    wide = jax.tree.map(lambda x: x.astype(jnp.float64), g)
    wanted, _ = jax.jit(opt.update)(wide, opt.init(exact), exact)
    for a, b in zip(jax.tree.leaves(updates), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b), rtol=2**-8, atol=1e-30)


@with_theirs
def test_complex_parameters_as_optax(name):
    real, imag = tree(0, {"w": (129, 130), "b": (4,)}), tree(1, {"w": (129, 130), "b": (4,)})
    params = jax.tree.map(jax.lax.complex, real, imag)
    grads = [jax.tree.map(jax.lax.complex, tree(i, {"w": (129, 130), "b": (4,)}), real) for i in range(2, 5)]
    ours, state = run(FRONTS[name](0.01), params, grads)
    theirs, _ = run(THEIRS[name](0.01), params, grads)
    assert not any(jnp.iscomplexobj(x) for x in jax.tree.leaves(getattr(state, "nu", getattr(state, "v", ()))))
    close(ours, theirs, 3e-6)


CLIPPED = {"max_grad_norm": 1.0, "max_grad_norm_per_tensor": 0.5, "max_grad_value": 0.3, "maximize": True}
# Nothing, and what changes where in a step sums are taken, and of what.
SUMS = {
    "Lamb": [CLIPPED, {"weight_decay": 0.1, "decay": "l2"}, {"bias_correction": "lr", "grad_averaging": False}],
    "Lars": [{**CLIPPED, "weight_decay": 0.1}, {"norm": "split", "weight_decay": 0.1}],
    "Adafactor": [{**CLIPPED, "weight_decay_rate": 0.1}, {"factored": False}, {"momentum": 0.9}],
}
SETTINGS = [
    pytest.param(name, one, marks=() if i < 2 else pytest.mark.slow)
    for name in NAMES
    if name != "Muon"  # whose products of matrices are such memory
    for i, one in enumerate([{}, *SUMS.get(name, [])])
]


@pytest.mark.parametrize(("name", "options"), SETTINGS, ids=str)
def test_large_tensors_take_no_memory_on_the_way(name, options):
    """What a step needs besides its arguments and results is far less than one of the parameters."""
    shapes = dict.fromkeys("ab", (512, 512))
    params, opt = tree(0, shapes), FRONTS[name](0.1, stats=True, **options)

    def step(params, state, g):
        updates, state = jax.jit(opt.update)(g, state, params)
        return optax.apply_updates(params, updates), state

    program = compiled(jax.jit(step, donate_argnums=(0, 1)), params, opt.init(params), params)
    assert program.memory_analysis().temp_size_in_bytes < params["a"].nbytes / 4
