"""Inside what people wrap optimizers in: optax's combinations, flax, equinox, and saved states."""

from __future__ import annotations

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_front.front import (
    BUSY,
    FRONTS,
    LITTLE,
    NAMES,
    THEIRS,
    close,
    goes_on,
    gradients,
    made,
    mainly,
    run,
    same,
    taken,
    tree,
)
from reference.adafactor import ramp

from layerwise import jax as front

pytestmark = pytest.mark.thinned(1, 2)

slow = pytest.mark.slow


# ---- optax's combinations


WRAPS = {
    "chain": lambda opt: optax.chain(
        optax.clip_by_global_norm(0.5), optax.add_decayed_weights(0.01), opt, optax.scale(0.5), optax.ema(0.9)
    ),
    "lookahead": lambda opt: optax.lookahead(opt, sync_period=2, slow_step_size=0.5),
    "schedule_free": lambda opt: optax.contrib.schedule_free(opt, learning_rate=0.1),
    "mechanize": optax.contrib.mechanize,
    "sam": lambda opt: optax.contrib.sam(opt, optax.sgd(0.1), sync_period=2),
    "extra_args": optax.with_extra_args_support,
    "conditionally": lambda opt: optax.conditionally_transform(opt, lambda step: step > 0),
    "masked": lambda opt: optax.masked(opt, {"w": True, "b": False}),
    "multi_transform": lambda opt: optax.multi_transform(
        {"ours": opt, "other": optax.sgd(0.1)}, {"w": "ours", "b": "other"}
    ),
    "partition": lambda opt: optax.partition({"ours": opt, "other": optax.sgd(0.1)}, {"w": "ours", "b": "other"}),
    "multi_steps": lambda opt: optax.MultiSteps(opt, every_k_schedule=2),
}
# One that calls it once for each step, in parts, in a branch, and with other arguments.
AT_ONCE = {"chain", "partition", "multi_steps", "mechanize"}


@mainly("Lamb", THEIRS)
@pytest.mark.parametrize(
    "wrap", [pytest.param(wrap, id=one, marks=() if one in AT_ONCE else slow) for one, wrap in WRAPS.items()]
)
def test_wrapped_it_goes_where_optax_s_goes(name, wrap, request):
    params = tree(0, LITTLE)
    held = optax.LookaheadParams.init_synced(params) if "lookahead" in request.node.name else params
    ours, theirs = (run(wrap(make[name](0.1)), held, gradients(4, LITTLE))[0] for make in (FRONTS, THEIRS))
    close(ours, theirs, 2e-5)


@pytest.mark.parametrize("combine", [pytest.param(optax.multi_transform, marks=pytest.mark.slow), optax.partition])
def test_two_rules_are_clipped_by_the_norm_of_all_outside_and_of_their_own_inside(combine):
    params, grads = tree(0, LITTLE), gradients(2, LITTLE)
    labels, clip = {"w": "matrices", "b": "others"}, optax.clip_by_global_norm(0.3)
    both = {"matrices": made("Lamb", stats=True), "others": made("AdamW", stats=True)}
    mixed, state = run(optax.chain(clip, combine(both, labels)), params, grads)
    scaled = [clip.update(g, clip.init(params))[0] for g in grads]
    for name, key in (("Lamb", "w"), ("AdamW", "b")):
        close(mixed[key], run(made(name), params[key], [g[key] for g in scaled])[0], 2e-6)
    assert front.stats(state).keys() == {"w", "b"}
    own = made("AdamW", max_grad_norm=0.3)
    inside, _ = run(combine({**both, "others": own}, labels), params, grads)
    close(inside["b"], run(own, params["b"], [g["b"] for g in grads])[0], 2e-6)


@mainly("Lars")
def test_apply_if_finite_leaves_a_step_out_and_without_it_nan_stays_nan(name):
    params, bad = tree(0, LITTLE), {**tree(2, LITTLE), "b": jnp.full(4, jnp.nan)}
    opt = optax.apply_if_finite(made(name), max_consecutive_errors=3)
    update = jax.jit(opt.update)
    _, state = update(tree(1, LITTLE), opt.init(params), params)
    updates, after = update(bad, state, params)
    assert not any(np.any(u) for u in jax.tree.leaves(updates))
    same(after.inner_state, state.inner_state)
    assert all(np.all(np.isfinite(u)) for u in jax.tree.leaves(update(tree(3, LITTLE), after, params)[0]))
    alone, _ = jax.jit(made(name).update)(bad, made(name).init(params), params)
    assert np.isnan(alone["b"]).all()
    assert np.isfinite(alone["w"]).all()


# ---- inject_hyperparams


@mainly("Lamb")
def test_inject_hyperparams(name):
    """Its numbers are those of the state, also changed by hand as people do, without another compilation."""
    params, grads = tree(0, LITTLE), gradients(3, LITTLE)
    static = {"static_args": tuple(taken(name, {"min_dim_size_to_factor": 0, "iterations": 5}))}
    injected = optax.inject_hyperparams(FRONTS[name], **static)(learning_rate=0.1)
    state, update = injected.init(params), jax.jit(injected.update)
    assert {"learning_rate", *taken(name, dict.fromkeys(("b1", "decay_rate")))} <= state.hyperparams.keys()
    rounded = {option: value.item() for option, value in state.hyperparams.items()}  # to float32, as 1 − β₃ shows
    ours = expected = params
    plain_state = FRONTS[name](**rounded).init(params)
    for g, lr in zip(grads, (0.1, 0.1, 0.01), strict=True):
        state.hyperparams["learning_rate"] = jnp.asarray(lr, jnp.float32)
        updates, state = update(g, state, ours)
        ours = optax.apply_updates(ours, updates)
        expected, plain_state = goes_on(made(name, **{**rounded, "learning_rate": lr}), expected, plain_state, [g])
    close(ours, expected, 5e-6)
    assert update._cache_size() == 1


@pytest.mark.parametrize("name", ["Lars", "SGD", "ScaleSGD", "SinkGD"])
@pytest.mark.thinned(1, 4)
def test_an_injected_momentum_may_begin_at_0(name):
    params, grads = tree(0, LITTLE), gradients(2, LITTLE)
    static = {"static_args": tuple(taken(name, {"iterations": 5}))}
    injected = optax.inject_hyperparams(FRONTS[name], **static)(0.1, momentum=0.0)
    state = injected.init(params)
    close(goes_on(injected, params, state, grads)[0], run(FRONTS[name](0.1, momentum=0.0), params, grads)[0], 1e-5)
    state.hyperparams["momentum"] = jnp.asarray(0.9, jnp.float32)
    wanted = run(FRONTS[name](0.1, momentum=0.9), params, grads)[0]
    close(goes_on(injected, params, state, grads)[0], wanted, 1e-5)


OF_MANY = {
    "learning_rate": 0.1, "weight_decay": 0.1, "weight_decay_rate": 0.1, "zero_norm_ratio": 0.5, "l2": 0.1,
    "min_norm": 1.5, "max_grad_norm": 3.0, "max_grad_norm_per_tensor": 2.0, "max_grad_value": 1.0,
}  # fmt: skip
OF_ONE = {
    "Lamb": {"eps_root": 1e-3, "max_weight_norm": 2.0, "trust_eps": 0.1},
    "Lars": {"dampening": 0.2, "eps": 0.1, "norm": "split"},
    "Came": {"beta3": 0.9},  # 1 - 0.9999 of float32 has four digits
    "ScaleSGD": {"momentum": 0.9, "scale": 0.5},
    "SinkGD": {"momentum": 0.9, "scale": 0.5},
    "Adafactor": {
        "momentum": 0.9, "decay_offset": 1, "beta2_cap": 0.5, "clipping_threshold": 0.7, "eps": 1e-8,
        "min_dim_size_to_factor": 0,
    },
}  # fmt: skip
SIZES = {"min_dim_size_to_factor": 0, "iterations": 0, "ns_steps": 0}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.thinned(2, 2)
def test_every_option_of_the_formula_can_be_injected(name):
    """Whatever is a number becomes an array, traced under jit."""
    options = {**OF_ONE.get(name, {}), **taken(name, OF_MANY)}
    make = optax.inject_hyperparams(FRONTS[name], static_args=tuple(taken(name, SIZES)))
    injected, state = run(make(**options), tree(0, LITTLE), gradients(2, LITTLE))
    assert {*options} - {"norm", *SIZES} <= state.hyperparams.keys()
    close(injected, run(FRONTS[name](**options), tree(0, LITTLE), gradients(2, LITTLE))[0], 5e-6)


@pytest.mark.parametrize("beta2", [0.6, ramp], ids=["number", "function"])
def test_an_injected_beta2_may_be_a_function_and_is_told_the_same_count(beta2):
    options = {"learning_rate": 0.1, "beta2": beta2, "min_dim_size_to_factor": 0}
    make = optax.inject_hyperparams(front.adafactor, static_args=("min_dim_size_to_factor",))
    found, state = run(make(**options), tree(0, LITTLE), gradients(3, LITTLE))
    assert "beta2" in state.hyperparams
    close(found, run(front.adafactor(**options), tree(0, LITTLE), gradients(3, LITTLE))[0], 5e-6)


@pytest.mark.parametrize(
    ("name", "size"), [("adafactor", "min_dim_size_to_factor"), ("sinkgd", "iterations"), ("muon", "ns_steps")]
)
def test_sizes_cannot_be_injected(name, size):
    opt = optax.inject_hyperparams(getattr(front, name))(0.1)
    with pytest.raises(ValueError, match=rf"{size}.*static_args"):
        jax.jit(opt.update)(tree(1), opt.init(tree(0)), tree(0))


# ---- the state as optax reads it


@mainly("Adafactor")
def test_map_params_maps_what_is_of_parameters_and_nothing_else(name):
    opt, params = made(name), tree(0)
    state = optax.tree.map_params(opt, lambda x: x + 1, opt.init(params))
    assert int(state.count) == 0
    assert all(np.all(x == 1) for x in jax.tree.leaves(state._replace(count=None)))
    assert int(optax.tree.get(optax.chain(opt).init(params), "count")) == 0


OF_OPTAX = {
    "Lamb": ("mu", "nu"),
    "AdamW": ("mu", "nu"),
    "Lars": ("trace",),
    "Adafactor": ("v_row", "v_col", "v", "ema"),
}


@mainly("Adafactor", [name for name in THEIRS if name in OF_OPTAX])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda opt: opt,
        lambda opt: optax.chain(optax.clip(10.0), opt),
        pytest.param(lambda opt: optax.masked(opt, {"w": True, "b": True}), marks=slow),
        lambda opt: optax.multi_transform({"ours": opt}, "ours"),
        pytest.param(lambda opt: optax.MultiSteps(opt, 1), marks=slow),
        pytest.param(lambda opt: optax.apply_if_finite(opt, 3), marks=slow),
    ],
    ids=["alone", "chain", "masked", "multi_transform", "multi_steps", "apply_if_finite"],
)
def test_the_state_is_read_by_optax_s_names(name, wrap):
    options = {"min_dim_size_to_factor": 0, "momentum": 0.9} if name == "Adafactor" else {}
    ours, theirs = (
        run(wrap(make[name](0.1, **options)), tree(0, LITTLE), gradients(2, LITTLE), jit=False)[1]
        for make in (FRONTS, THEIRS)
    )
    for part in OF_OPTAX[name]:
        found, wanted = (optax.tree_utils.tree_get(state, part) for state in (ours, theirs))
        assert found is not None
        if part not in ("v_row", "v_col"):  # where optax has other dimensions
            for key in LITTLE:
                if found[key] is not None:  # optax keeps arrays of one entry where nothing is needed
                    sign = -1 if part == "trace" else 1
                    most = float(np.max(np.abs(wanted[key])))  # small entries are differences of larger ones
                    np.testing.assert_allclose(found[key], sign * wanted[key], rtol=0, atol=2e-5 * most)
        changed = optax.tree_utils.tree_set(ours, **{part: jax.tree.map(jnp.zeros_like, found)})
        assert not any(np.any(x) for x in jax.tree.leaves(optax.tree_utils.tree_get(changed, part)))


# ---- flax and equinox


def with_flax(opt, x, dtype):
    nn, train_state = pytest.importorskip("flax.linen"), pytest.importorskip("flax.training.train_state")
    model = nn.Dense(80, param_dtype=dtype)
    state = train_state.TrainState.create(apply_fn=model.apply, params=model.init(jax.random.key(0), x), tx=opt)

    @jax.jit
    def step(state):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((state.apply_fn(p, x) - 1) ** 2))(state.params)
        return state.apply_gradients(grads=grads), loss

    while True:
        state, loss = step(state)
        yield loss, state.opt_state


def with_nnx(opt, x, dtype):
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(64, 80, rngs=nnx.Rngs(0), param_dtype=dtype)
    held = nnx.Optimizer(model, opt, wrt=nnx.Param)

    @nnx.jit
    def step(model, held):
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - 1) ** 2))(model)
        held.update(model, grads)
        return loss

    while True:
        yield step(model, held), held.opt_state


def with_equinox(opt, x, dtype):
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.Linear(64, 80, dtype=dtype, key=jax.random.key(0))
    state = opt.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state):
        loss, grads = eqx.filter_value_and_grad(lambda m: jnp.mean((jax.vmap(m)(x) - 1) ** 2))(model)
        params, rest = eqx.partition(model, eqx.is_inexact_array)
        updates, state = opt.update(grads, state, params)
        return eqx.combine(optax.apply_updates(params, updates), rest), state, loss

    while True:
        model, state, loss = step(model, state)
        yield loss, state


FEW_BYTES = {"master_weights": "split24", "rounding": "stochastic", "state_dtype": "int8"}


@pytest.mark.parametrize(
    ("name", "trained", "stored"),
    [
        ("Lamb", with_flax, FEW_BYTES),
        ("Lamb", with_nnx, FEW_BYTES),
        ("Adafactor", with_equinox, FEW_BYTES),
        *(pytest.param(name, with_nnx, FEW_BYTES, marks=slow) for name in NAMES if name != "Lamb"),
        pytest.param("Lars", with_nnx, {}, marks=slow),
        pytest.param("Lamb", with_nnx, {"master_weights": True}, marks=slow),
        pytest.param("Lamb", with_nnx, {"state_dtype": "bfloat16"}, marks=slow),
    ],
)
@pytest.mark.thinned(3, 8)
def test_models_are_trained_in(name, trained, stored):
    opt = made(name, learning_rate=0.001, stats=True, **stored)
    steps = trained(opt, jnp.ones((2, 64)), jnp.bfloat16 if stored else jnp.float32)
    losses, states = zip(*(next(steps) for _ in range(3)), strict=True)
    assert losses[2] < losses[0]
    assert int(getattr(states[2], "inner", states[2]).count[...]) == 3
    assert len(front.stats(states[2])) == 2
    assert all(float(one["trust_ratio"]) > 0 for one in front.stats(states[2]).values())


# ---- saved


def by_flax_bytes(state, like, folder):
    serialization = pytest.importorskip("flax.serialization")
    return serialization.from_bytes(like, serialization.to_bytes(state))


def by_pickle(state, like, folder):
    return pickle.loads(pickle.dumps(state))


def by_orbax(state, like, folder):
    ocp = pytest.importorskip("orbax.checkpoint")
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "state", state)
        checkpointer.wait_until_finished()
        return checkpointer.restore(folder / "state", jax.tree.map(jnp.zeros_like, like))


@pytest.mark.filterwarnings("ignore")  # orbax and what it imports have their own
@pytest.mark.parametrize(
    ("name", "through", "stored"),
    [
        ("Lamb", by_flax_bytes, FEW_BYTES),
        ("Lars", by_pickle, {}),
        pytest.param("Adafactor", by_orbax, {}, marks=slow),
        pytest.param("Lamb", by_orbax, FEW_BYTES, marks=slow),
    ],
)
@pytest.mark.thinned(3, 3)
def test_a_saved_state_resumes_bit_for_bit(name, through, stored, tmp_path):
    made_so, shapes, dtype = {**BUSY[name], "stats": True, **stored}, {"w": (64, 80), "b": (7,)}, "bfloat16"
    opt, again = FRONTS[name](**made_so), FRONTS[name](**made_so)  # as a program that goes on makes one
    grads = gradients(3, shapes, dtype)
    params, state = run(opt, tree(0, shapes, dtype), grads[:2])
    restored = jax.tree.map(jnp.asarray, through(state, again.init(params), tmp_path))
    same(restored, state)
    same(goes_on(again, params, restored, grads[2:]), goes_on(opt, params, state, grads[2:]))
