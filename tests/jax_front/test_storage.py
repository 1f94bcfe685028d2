"""Weights and state in few bytes under JAX: in the state's tree, through jit and wrappers, and to PyTorch and back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax_front.front import FRONTS, NAMES, made, mainly, same, tree

import layerwise.numpy as numpy_front
from layerwise import convert
from layerwise.errors import ContradictionError, HyperparameterError, ParameterError, StateError
from layerwise.jax import Grouped, MasterState, adafactor, lamb, lars
from layerwise.jax._bits import BITS
from layerwise.storage import weights as formats

SHAPES = {"w": (64, 80), "b": (7,)}
EVERYTHING = {"master_weights": "split24", "rounding": "stochastic", "state_dtype": "int8", "seed": 3}


def grads(steps, first=0, shapes=SHAPES):
    return [tree(10 + i, shapes, "bfloat16") for i in range(first, first + steps)]


def start(shapes=SHAPES):
    return tree(0, shapes, "bfloat16")


def walked(opt, params, state, given, jit=False):
    update = jax.jit(opt.update, donate_argnums=1) if jit else opt.update
    for g in given:
        updates, state = update(g, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def joined(p, rest):
    return np.asarray(formats.join_bf16(BITS, BITS.as_floats(p), BITS.integers(rest), 8 * rest.dtype.itemsize))


def test_what_the_state_is():
    state = lamb(0.1, **EVERYTHING).init(start())
    assert isinstance(state, MasterState)
    found = jax.tree.map(lambda x: (x.dtype.name, x.shape), state)
    assert found.inner.mu["w"] == Grouped(("int8", (64, 80)), ("float32", (64, 2)))
    assert found.inner.nu["w"] == Grouped(("uint8", (64, 80)), ("float32", (64, 2)))
    assert found.inner.mu["b"] == ("float32", (7,))  # a small tensor
    assert found.weights == {"w": ("int8", (64, 80)), "b": ("int8", (7,))}
    assert optax.tree_utils.tree_get(state, "mu")["b"].shape == (7,)


@pytest.mark.parametrize("jit", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "options",
    [
        EVERYTHING,
        pytest.param({"master_weights": "split"}, marks=pytest.mark.slow),
        pytest.param({"state_dtype": "bfloat16", "rounding": "stochastic"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_numbers_of_the_numpy_front(options, jit):
    """Sums differ in their last digits, and codes where a number lies between two of them."""
    weights = {name: np.array(p) for name, p in start().items()}
    theirs = numpy_front.Lamb(lr=0.01, weight_decay=0.1, engine="rule", **options)
    for g in grads(3):
        theirs.step_all(weights, {name: np.array(one) for name, one in g.items()})
    opt = lamb(0.01, weight_decay=0.1, **options)
    params, state = walked(opt, start(), opt.init(start()), grads(3), jit)
    inner = state.inner if isinstance(state, MasterState) else state
    for name in SHAPES:
        assert np.mean(np.asarray(params[name]) != weights[name]) < 0.004
        for key, one in (("exp_avg", inner.mu[name]), ("exp_avg_sq", inner.nu[name])):
            saved, found = theirs.state_dict()[f"{name}/{key}"], one
            if isinstance(one, Grouped):
                found = one.codes
                scale = theirs.state_dict()[f"{name}/{key}_scale"]
                np.testing.assert_allclose(np.asarray(one.scale), scale, rtol=1e-6)
                assert np.mean(np.asarray(found) != saved) < 2e-3
            else:
                size = float(np.max(abs(saved.astype(np.float32))))
                far = abs(np.asarray(found, np.float32) - saved.astype(np.float32)) > 2e-6 * size
                assert far.mean() < 2e-3
            assert found.dtype == saved.dtype


def test_small_state_stays_float32():
    state = lamb(0.1, state_dtype="bfloat16").init(start())
    assert {key: x.dtype.name for key, x in state.mu.items()} == {"w": "bfloat16", "b": "float32"}


def test_bfloat16_that_a_state_brought_is_rounded_at_random():
    shapes, found = {"w": (64, 80)}, {}
    for kind in (None, "stochastic", "nearest"):
        opt, state = lars(0.01, rounding=kind), lars(0.01, state_dtype="bfloat16").init(start(shapes))
        found[kind] = np.asarray(walked(opt, start(shapes), state, grads(1, 0, shapes), jit=True)[1].trace["w"])
        assert found[kind].dtype == jnp.bfloat16
    np.testing.assert_array_equal(found[None], found["stochastic"])
    assert np.mean(found[None] != found["nearest"]) > 0.1


def test_dtype_momentum_alone_rounds_to_nearest():
    shapes, found = {"w": (64, 80)}, {}
    params = tree(0, shapes, "float32")
    for kind in (None, "stochastic", "nearest"):
        opt = adafactor(0.01, momentum=0.9, dtype_momentum=jnp.bfloat16, rounding=kind)
        found[kind] = np.asarray(walked(opt, params, opt.init(params), grads(1, 0, shapes), jit=True)[1].ema["w"])
    np.testing.assert_array_equal(found[None], found["nearest"])
    assert np.mean(found[None] != found["stochastic"]) > 0.1


def test_bfloat16_that_a_state_brought_needs_specs_where_it_is_cut():
    mesh = Mesh(jax.devices()[:1], ("x",))
    state = lamb(0.01, state_dtype="bfloat16").init(start())
    opt = lamb(0.01, axis_name="x")
    cut = jax.tree.map(lambda x: P("x") if x.ndim else P(), state)
    step = jax.shard_map(opt.update, mesh=mesh, in_specs=(P("x"), cut, P("x")), out_specs=(P("x"), cut))
    with pytest.raises(ContradictionError, match="specs"):
        jax.eval_shape(step, start(), state, start())


@mainly("Lamb")
@pytest.mark.parametrize("jit", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_split_weights_are_masters_bit_for_bit(name, jit):
    ours, theirs = (made(name, master_weights=kind) for kind in ("split", True))
    params, state = walked(ours, start(), ours.init(start()), grads(5), jit)
    others, masters = walked(theirs, start(), theirs.init(start()), grads(5), jit)
    for key in SHAPES:
        np.testing.assert_array_equal(joined(params[key], state.weights[key]), masters.weights[key])
        assert np.mean(np.asarray(params[key] != others[key])) < 2e-3  # ties alone


@pytest.mark.parametrize("kind", ["split24", pytest.param("split", marks=pytest.mark.slow)])
def test_plain_apply_updates_leads_to_the_weights_that_are_meant(kind):
    """Steps as long as the weights, so that many change their sign or nearly vanish."""
    opt = lars(3e2, momentum=0.5, master_weights=kind)
    params, state = start(), opt.init(start())
    for g in grads(4):
        params, state = walked(opt, params, state, [g])
        for key, p in params.items():
            rest = state.weights[key]
            bits = 8 * rest.dtype.itemsize
            again, lacking = formats.split_bf16(BITS, jnp.asarray(joined(p, rest)), bits)
            np.testing.assert_array_equal(again, np.asarray(p, np.float32))
            np.testing.assert_array_equal(np.asarray(lacking.array).astype(rest.dtype), rest)


def test_small_steps_are_not_lost():
    """A step of a tenth of a last place: to nearest none is taken, at random one in ten is."""
    params = {"w": jnp.ones((100, 100), jnp.bfloat16)}
    moved = {}
    for kind in ("nearest", "stochastic"):
        opt = lars(2.0**-8 / 1e-3 / 10, momentum=0.0, rounding=kind)
        ends, _ = walked(opt, params, opt.init(params), [jax.tree.map(jnp.ones_like, params)] * 10, jit=True)
        moved[kind] = 1 - float(np.asarray(ends["w"], np.float64).mean())
    assert moved["nearest"] == 0
    assert abs(moved["stochastic"] - 2.0**-8) < 5 * 2.0**-8 / 100


def test_the_seed_and_the_name_decide():
    params = {"a": jnp.ones((100, 100), jnp.bfloat16), "b": jnp.ones((100, 100), jnp.bfloat16)}
    found = []
    for seed in (None, 0, 1):
        opt = lars(1.0, momentum=0.0, rounding="stochastic", seed=seed)
        found.append(walked(opt, params, opt.init(params), [jax.tree.map(jnp.ones_like, params)])[0])
    same(found[0], found[1])
    assert np.mean(np.asarray(found[0]["a"] != found[2]["a"])) > 0.05
    assert np.mean(np.asarray(found[0]["a"] != found[0]["b"])) > 0.05


def test_bytes():
    """LAMB at 5.2 bytes a parameter, weights and state; Adafactor with momentum at 4.2."""
    params = {"w": jnp.zeros((256, 1024), jnp.bfloat16)}
    momentum = {"momentum": 0.9, "master_weights": "split24", "state_dtype": "int8"}
    for opt, most in ((lamb(0.1, **EVERYTHING), 5.2), (adafactor(0.1, **momentum), 4.2)):
        size = sum(x.nbytes for x in jax.tree.leaves((params, opt.init(params))))
        assert size / params["w"].size < most


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("blocks", [{"w": 4, "b": None}, {"w": "each", "b": None}], ids=str)
def test_blocks(name, blocks):
    whole, apart = made(name, state_dtype="int8", blocks=blocks), made(name, blocks=blocks)
    ours, _ = walked(whole, start(), whole.init(start()), grads(2), jit=True)
    theirs, _ = walked(apart, start(), apart.init(start()), grads(2), jit=True)
    for key in SHAPES:
        difference = np.asarray(ours[key], np.float32) - np.asarray(theirs[key], np.float32)
        assert np.abs(difference).mean() < 0.05 * np.abs(np.asarray(theirs[key], np.float32)).mean()


def wrapped(around):
    opt = lamb(0.01, **EVERYTHING)
    injected = optax.inject_hyperparams(lamb, static_args=("seed",), hyperparam_dtype=jnp.float32)
    return {
        "chain": optax.chain(optax.clip_by_global_norm(1e9), opt),
        "masked": optax.masked(opt, {"w": True, "b": False}),
        "finite": optax.apply_if_finite(opt, 3),
        "several": optax.MultiSteps(opt, 1),
        "injected": injected(0.01, **EVERYTHING),
    }[around]


@pytest.mark.parametrize(
    "around", ["injected", *(pytest.param(x, marks=pytest.mark.slow) for x in ("several", "chain", "masked", "finite"))]
)
def test_inside_wrappers(around):
    opt, plain = wrapped(around), lamb(0.01, **EVERYTHING)
    # apply_if_finite wants updates of the gradients' dtype, and these are of float32.
    given = [jax.tree.map(jnp.float32, g) for g in grads(2)]
    ours, _ = walked(opt, start(), opt.init(start()), given)
    theirs, _ = walked(plain, start(), plain.init(start()), given)
    np.testing.assert_array_equal(np.asarray(ours["w"]), np.asarray(theirs["w"]))


def test_a_seed_that_is_traced_is_refused():
    injected = optax.inject_hyperparams(lamb, hyperparam_dtype=jnp.float32)
    opt = injected(0.01, rounding="stochastic", seed=3)
    state = opt.init(start())
    with pytest.raises(HyperparameterError, match="static_args"):
        jax.jit(opt.update)(start(), state, start())
    plain = injected(0.01, rounding="stochastic")
    jax.eval_shape(plain.update, start(), plain.init(start()), start())


@pytest.mark.slow
def test_through_flax_s_checkpoints():
    serialization = pytest.importorskip("flax.serialization")
    opt = lamb(0.01, **EVERYTHING)
    params, state = walked(opt, start(), opt.init(start()), grads(1))
    saved = serialization.to_bytes(state)
    restored = jax.tree.map(jnp.asarray, serialization.from_bytes(opt.init(start()), saved))
    same(restored, state)
    same(walked(opt, params, restored, grads(1, 1))[0], walked(opt, params, state, grads(1, 1))[0])


@pytest.mark.slow
def test_through_orbax(tmp_path):
    orbax = pytest.importorskip("orbax.checkpoint")
    opt = lamb(0.01, **EVERYTHING)
    _, state = walked(opt, start(), opt.init(start()), grads(1))
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        same(checkpointer.restore(tmp_path / "state", opt.init(start())), state)


def test_states_from_one_form_to_another():
    plain, compact = lamb(0.01), lamb(0.01, **EVERYTHING)
    params, state = walked(plain, start(), plain.init(start()), grads(2), jit=True)
    made_of_it = convert.stored_as(state, compact, params)
    assert jax.tree.structure(made_of_it) == jax.tree.structure(compact.init(params))
    again = convert.stored_as(made_of_it, plain, params)
    for ours, theirs in zip(jax.tree.leaves(again.nu), jax.tree.leaves(state.nu), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0.05, atol=0.02 * float(jnp.max(theirs)))
    same(convert.stored_as(made_of_it, compact, params), made_of_it)
    masters = lamb(0.01, master_weights=True)
    _, with_masters = walked(masters, params, masters.init(params), grads(3), jit=True)
    split = lamb(0.01, master_weights="split")
    shown = jax.tree.map(lambda x: x.astype(jnp.bfloat16), with_masters.weights)
    rest = convert.stored_as(with_masters, split, shown).weights
    for key in SHAPES:
        full = np.asarray(with_masters.weights[key])
        np.testing.assert_allclose(joined(shown[key], rest[key]), full, rtol=2.0**-23)
    back = convert.stored_as(convert.stored_as(with_masters, split, shown), masters, shown)
    for key in SHAPES:
        np.testing.assert_allclose(back.weights[key], with_masters.weights[key], rtol=2.0**-23)


@pytest.mark.parametrize("axes", [None, {"w": (1, 0)}], ids=["as they are", "transposed"])
def test_to_pytorch_and_back(axes):
    torch = pytest.importorskip("torch")
    import layerwise.torch as torch_front

    opt = lamb(0.01, **EVERYTHING)
    params, state = walked(opt, start(), opt.init(start()), grads(2))
    w = np.asarray(params["w"], np.float32)
    w = np.array(w if axes is None else w.T)
    named = [(key, torch.nn.Parameter(x.bfloat16())) for key, x in (("w", torch.tensor(w)), ("b", torch.zeros(7)))]
    theirs = torch_front.Lamb(named, lr=0.01, **EVERYTHING)
    given = convert.to_torch(state, params, theirs, axes=axes)
    theirs.load_state_dict(given)
    if axes is None:  # else some of it is numbers until it is loaded
        saved, made_of_it = (one["state"][0].items() for one in (theirs.state_dict(), given))
        assert {key: x.shape for key, x in saved} == {key: x.shape for key, x in made_of_it}
    kept = theirs.state[named[0][1]]
    assert kept["exp_avg"].dtype == torch.int8
    rest = np.asarray(state.weights["w"])
    np.testing.assert_array_equal(kept["remainder"].numpy(), rest if axes is None else rest.T)
    back = convert.from_torch(theirs.state_dict(), opt, params, axes=axes)
    if axes is None:
        same(back, state)  # codes and scales bit by bit
    assert jax.tree.structure(back) == jax.tree.structure(state)
    same(back.weights, state.weights)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({}, lambda s: MasterState(s, None)),
        ({"master_weights": "split"}, lambda s: s.inner),
        ({"master_weights": "split"}, lambda s: s._replace(weights=jax.tree.map(jnp.float32, s.weights))),
        ({"state_dtype": "int8"}, lambda s: s._replace(mu={**s.mu, "w": s.mu["w"]._replace(scale=jnp.ones(3))})),
        ({"state_dtype": "int8"}, lambda s: s._replace(mu={**s.mu, "w": s.nu["w"]})),
    ],
)
def test_a_state_of_another_form_is_an_error(options, wrong):
    opt = lamb(0.01, **options)
    with pytest.raises(StateError):
        opt.update(start(), wrong(opt.init(start())), start())


def test_bad_options():
    for options in ({"master_weights": "x"}, {"rounding": "up"}, {"state_dtype": "int4"}, {"seed": -1}):
        with pytest.raises(HyperparameterError, match=next(iter(options))):
            lamb(0.1, **options)
    with pytest.raises(HyperparameterError, match="as dtype_momentum has it"):
        adafactor(0.1, momentum=0.9, dtype_momentum=jnp.bfloat16, state_dtype="int8")
    adafactor(0.1, momentum=0.9, state_dtype="int8")  # float32 is what optax's argument is by default
    with pytest.raises(ContradictionError, match="specs"):
        lamb(0.1, axis_name="x", state_dtype="int8")


def test_more_elements_than_32_bits_count():
    params = {"w": jax.ShapeDtypeStruct((1 << 17, (1 << 15) + 1), jnp.bfloat16)}
    opt = lars(0.1, rounding="stochastic")
    with pytest.raises(ParameterError, match=r"2\^32"):
        jax.eval_shape(opt.update, params, jax.eval_shape(opt.init, params), params)


def test_a_cut_through_groups_is_refused():
    mesh = Mesh(jax.devices()[:1], ("x",))
    opt = FRONTS["Lamb"](0.1, axis_name="x", specs=P(None, "x"), state_dtype="int8")
    step = jax.shard_map(opt.init, mesh=mesh, in_specs=P(None, "x"), out_specs=P(), check_vma=False)
    with pytest.raises(ParameterError, match="groups of 64"):
        jax.eval_shape(step, jnp.ones((64, 80)))
