"""Inside what people wrap optimizers in: optax's combinations, flax, equinox, and saved states."""

from __future__ import annotations

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_front.front import BUSY, FRONTS, NAMES, THEIRS, close, goes_on, gradients, made, mainly, run, same, taken, tree
from reference.adafactor import ramp

from layerwise import jax as front
from layerwise.errors import StateError

pytestmark = pytest.mark.thinned(1, 2)

each = pytest.mark.parametrize("name", NAMES)
with_theirs = pytest.mark.parametrize("name", THEIRS)


@mainly("Lamb", THEIRS)
def test_chain(name):
    params, grads = tree(0), gradients(3)
    around = [optax.clip_by_global_norm(0.5), optax.add_decayed_weights(0.01)], [optax.scale(0.5), optax.ema(0.9)]
    ours, theirs = (
        run(optax.chain(*around[0], make(0.1), *around[1]), params, grads)[0] for make in (FRONTS[name], THEIRS[name])
    )
    close(ours, theirs, 2e-5)


@mainly("Lars")
@pytest.mark.parametrize(
    ("option", "clip"),
    [("max_grad_norm", optax.clip_by_global_norm), ("max_grad_value", optax.clip)],
)
def test_clipping_inside_is_optax_s_outside(name, option, clip):
    params, grads = tree(0), gradients(3)
    inside, _ = run(made(name, **{option: 0.3}), params, grads)
    outside, _ = run(optax.chain(clip(0.3), made(name)), params, grads)
    close(inside, outside, 2e-6)


@mainly("Lars")
@pytest.mark.parametrize("combine", [optax.multi_transform, optax.partition])
def test_partition(name, combine):
    params, grads = tree(0), gradients(3)
    labels = {"w": "ours", "b": "other", "s": "other", "deep": "ours"}
    both, _ = run(combine({"ours": made(name), "other": optax.sgd(0.1)}, labels), params, grads)
    alone, _ = run(made(name), params, grads)
    close(both["w"], alone["w"])
    close(both["deep"], alone["deep"])
    close(both["b"], run(optax.sgd(0.1), params, grads)[0]["b"])


@pytest.mark.parametrize("combine", [optax.multi_transform, optax.partition])
def test_two_rules_that_are_clipped_by_the_norm_of_all(combine):
    """With a partition around both, and the norm of all gradients before it."""
    params, grads = tree(0), gradients(3)
    labels = {"w": "matrices", "b": "others", "s": "others", "deep": "matrices"}
    both = {"matrices": made("Lamb", stats=True), "others": made("AdamW", stats=True)}
    mixed, state = run(optax.chain(optax.clip_by_global_norm(0.3), combine(both, labels)), params, grads)
    clip = optax.clip_by_global_norm(0.3)
    scaled = [clip.update(g, clip.init(params))[0] for g in grads]
    for name, keys in (("Lamb", ("w", "deep")), ("AdamW", ("b", "s"))):
        alone, _ = run(made(name), params, scaled)
        for key in keys:
            close(mixed[key], alone[key], 2e-6)
    assert front.stats(state).keys() == {"w", "b", "s", "deep/k", "deep/zero"}
    # Inside, the norm is that of a rule's own leaves.
    inside, _ = run(combine({**both, "others": made("AdamW", max_grad_norm=0.3)}, labels), params, grads)
    own = [{key: grad[key] for key in ("b", "s")} for grad in grads]
    close(
        {key: inside[key] for key in ("b", "s")},
        run(made("AdamW", max_grad_norm=0.3), {k: params[k] for k in ("b", "s")}, own)[0],
        2e-6,
    )


@mainly("Adafactor")
def test_masked(name):
    params, grads = tree(0), gradients(3)
    mask = {"w": True, "b": False, "s": False, "deep": True}
    masked, _ = run(optax.masked(made(name), mask), params, grads)
    close(masked["w"], run(made(name), params, grads)[0]["w"])
    close(masked["b"], params["b"] + sum(g["b"] for g in grads))


@mainly("Lamb")
def test_inject_hyperparams(name):
    params, grads = tree(0), gradients(3)
    static = {"static_args": tuple(taken(name, {"min_dim_size_to_factor": 0, "iterations": 5}))}
    injected = optax.inject_hyperparams(FRONTS[name], **static)(learning_rate=0.1)
    state, update = injected.init(params), jax.jit(injected.update)
    assert {"learning_rate", *taken(name, dict.fromkeys(("b1", "decay_rate")))} <= state.hyperparams.keys()
    rounded = {option: value.item() for option, value in state.hyperparams.items()}  # to float32, as 1 − β₃ shows
    ours, plain = params, FRONTS[name](**rounded)
    plain_state, expected = plain.init(params), params
    for i, g in enumerate(grads):
        if i == 2:  # changed by hand, as people do
            state.hyperparams["learning_rate"] = jnp.asarray(0.01, jnp.float32)
            plain = FRONTS[name](**{**rounded, "learning_rate": 0.01})
        updates, state = update(g, state, ours)
        ours = optax.apply_updates(ours, updates)
        updates, plain_state = jax.jit(plain.update)(g, plain_state, expected)
        expected = optax.apply_updates(expected, updates)
    close(ours, expected, 5e-6)
    assert update._cache_size() == 1


@pytest.mark.parametrize("name", ["Lars", "SGD", "ScaleSGD", "SinkGD"])
@pytest.mark.thinned(4, 4)
def test_injected_momentum_of_0_keeps_no_buffer(name):
    params, grads = tree(0), gradients(3)
    static = {"static_args": tuple(taken(name, {"iterations": 5}))}
    injected, plain = (
        optax.inject_hyperparams(FRONTS[name], **static)(0.1, momentum=0.0),
        FRONTS[name](0.1, momentum=0.0),
    )
    state, expected = injected.init(params), plain.init(params)
    assert jax.tree.structure(state.inner_state) == jax.tree.structure(expected)
    update = jax.jit(injected.update)
    for g in grads:
        updates, state = update(g, state, params)
        wanted, expected = plain.update(g, expected, params)
        close(updates, wanted, 1e-5)
    state.hyperparams["momentum"] = jnp.asarray(0.9, jnp.float32)
    with pytest.raises(StateError, match="momentum=0 and has no buffer"):
        injected.update(grads[0], state, params)


OF_MANY = {
    "learning_rate": 0.1, "weight_decay": 0.1, "weight_decay_rate": 0.1, "zero_norm_ratio": 0.5, "l2": 0.1,
    "min_norm": 1.5, "max_grad_norm": 3.0, "max_grad_norm_per_tensor": 2.0, "max_grad_value": 1.0,
}  # fmt: skip


@each
def test_inject_every_option_of_the_formula(name):
    """Whatever is a number becomes an array, traced under jit."""
    options = {
        "Lamb": {"eps_root": 1e-3, "max_weight_norm": 2.0, "trust_eps": 0.1},
        "Lars": {"dampening": 0.2, "eps": 0.1, "norm": "split"},
        "Came": {"beta3": 0.9},  # 1 - 0.9999 of float32 has four digits
        "ScaleSGD": {"momentum": 0.9, "scale": 0.5},
        "SinkGD": {"momentum": 0.9, "scale": 0.5},
        "Adafactor": {
            "momentum": 0.9, "decay_offset": 1, "beta2_cap": 0.5, "clipping_threshold": 0.7, "eps": 1e-8,
            "min_dim_size_to_factor": 0,
        },
    }.get(name, {})  # fmt: skip
    options |= taken(name, OF_MANY)
    static = {"static_args": tuple(taken(name, {"min_dim_size_to_factor": 0, "iterations": 0}))}
    params, grads = tree(0), gradients(3)
    injected, state = run(optax.inject_hyperparams(FRONTS[name], **static)(**options), params, grads)
    assert all(key in state.hyperparams for key in options if key != "norm" and key != "min_dim_size_to_factor")
    close(injected, run(FRONTS[name](**options), params, grads)[0], 5e-6)


def test_sizes_cannot_be_injected():
    opt = optax.inject_hyperparams(front.adafactor)(0.1)
    state = opt.init(tree(0))
    with pytest.raises(ValueError, match=r"min_dim_size_to_factor.*static_args"):
        jax.jit(opt.update)(tree(1), state, tree(0))


@mainly("Lars")
def test_apply_if_finite(name):
    opt, params = optax.apply_if_finite(made(name), max_consecutive_errors=3), tree(0)
    state, update = opt.init(params), jax.jit(opt.update)
    _, state = update(tree(1), state, params)
    updates, after = update({**tree(2), "b": jnp.full(4, jnp.nan)}, state, params)
    assert not any(np.any(u) for u in jax.tree.leaves(updates))
    same(after.inner_state, state.inner_state)
    updates, _ = update(tree(3), after, params)
    assert all(np.all(np.isfinite(u)) for u in jax.tree.leaves(updates))


@mainly("Lamb")
def test_nan_stays_nan_without_it(name):
    params = tree(0)
    updates, _ = jax.jit(made(name).update)({**tree(1), "b": jnp.full(4, jnp.nan)}, made(name).init(params), params)
    assert np.isnan(updates["b"]).all()
    assert np.isfinite(updates["w"]).all()


@mainly("Adafactor")
def test_multi_steps(name):
    params, grads = tree(0), gradients(4)
    steps = optax.MultiSteps(made(name), every_k_schedule=2)
    ours, state, update = params, steps.init(params), jax.jit(steps.update)
    for g in grads:
        updates, state = update(g, state, ours)
        ours = optax.apply_updates(ours, updates)
    means = [jax.tree.map(lambda a, b: (a + b) / 2, grads[i], grads[i + 1]) for i in (0, 2)]
    close(ours, run(made(name), params, means)[0], 2e-6)


@mainly("Lamb", THEIRS)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda opt: optax.lookahead(opt, sync_period=2, slow_step_size=0.5),
        optax.contrib.schedule_free,
        optax.contrib.mechanize,
        lambda opt: optax.contrib.sam(opt, optax.sgd(0.1), sync_period=2),
        optax.with_extra_args_support,
        lambda opt: optax.conditionally_transform(opt, lambda step: step > 0),
    ],
    ids=["lookahead", "schedule_free", "mechanize", "sam", "extra_args", "conditionally"],
)
def test_wrapped_it_goes_where_optax_s_goes(name, wrap):
    try:
        made_of = [wrap(make(0.1)) for make in (FRONTS[name], THEIRS[name])]
    except TypeError:
        made_of = [wrap(make(0.1), learning_rate=0.1) for make in (FRONTS[name], THEIRS[name])]
    shapes = {"w": (5, 4), "b": (4,)}
    params, grads = tree(0, shapes), gradients(4, shapes)
    found = []
    for opt in made_of:
        held = (
            optax.LookaheadParams.init_synced(params) if wrap.__name__ == "<lambda>" and _is_lookahead(opt) else params
        )
        found.append(run(opt, held, grads)[0])
    close(found[0], found[1], 2e-5)


def _is_lookahead(opt):
    return "lookahead" in getattr(opt.update, "__qualname__", "")


@mainly("Adafactor")
def test_map_params_and_get(name):
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
        lambda opt: optax.masked(opt, {"w": True, "b": True}),
        lambda opt: optax.multi_transform({"ours": opt}, "ours"),
        lambda opt: optax.MultiSteps(opt, 1),
        lambda opt: optax.apply_if_finite(opt, 3),
    ],
    ids=["alone", "chain", "masked", "multi_transform", "multi_steps", "apply_if_finite"],
)
def test_the_state_is_read_by_optax_s_names(name, wrap):
    shapes = {"w": (5, 4), "b": (4,)}
    params, grads = tree(0, shapes), gradients(2, shapes)
    options = {"min_dim_size_to_factor": 0, "momentum": 0.9} if name == "Adafactor" else {}
    (_, ours), (_, theirs) = (run(wrap(make(0.1, **options)), params, grads) for make in (FRONTS[name], THEIRS[name]))
    for part in OF_OPTAX[name]:
        found, wanted = (optax.tree_utils.tree_get(state, part) for state in (ours, theirs))
        assert found is not None
        if part not in ("v_row", "v_col"):  # where optax has other dimensions
            for key in params:
                if found[key] is not None:  # optax keeps arrays of one entry where nothing is needed
                    sign = -1 if part == "trace" else 1
                    most = float(np.max(np.abs(wanted[key])))  # small entries are differences of larger ones
                    np.testing.assert_allclose(found[key], sign * wanted[key], rtol=0, atol=2e-5 * most)
        changed = optax.tree_utils.tree_set(ours, **{part: jax.tree.map(jnp.zeros_like, found)})
        assert not any(np.any(x) for x in jax.tree.leaves(optax.tree_utils.tree_get(changed, part)))


# ---- flax and equinox


@mainly("Lamb")
def test_flax_train_state(name):
    nn = pytest.importorskip("flax.linen")
    train_state = pytest.importorskip("flax.training.train_state")
    model = nn.Dense(3)
    x = jnp.ones((2, 4))
    params = model.init(jax.random.key(0), x)
    state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=made(name, learning_rate=0.01))

    @jax.jit
    def step(state):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((state.apply_fn(p, x) - 1) ** 2))(state.params)
        return state.apply_gradients(grads=grads), loss

    losses = []
    for _ in range(3):
        state, loss = step(state)
        losses.append(float(loss))
    assert losses[2] < losses[0]
    assert int(state.opt_state.count) == 3


@mainly("Lars")
def test_nnx_optimizer(name):
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    opt = nnx.Optimizer(model, made(name, learning_rate=0.01), wrt=nnx.Param)
    x = jnp.ones((2, 4))

    @nnx.jit
    def step(model, opt):
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - 1) ** 2))(model)
        opt.update(model, grads)
        return loss

    losses = [float(step(model, opt)) for _ in range(3)]
    assert losses[2] < losses[0]


@mainly("Adafactor")
def test_equinox(name):
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(4, 3, 8, 1, key=jax.random.key(0))
    opt, x = made(name, learning_rate=0.01), jnp.ones(4)
    state = opt.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state):
        loss, grads = eqx.filter_value_and_grad(lambda m: jnp.mean((m(x) - 1) ** 2))(model)
        updates, state = opt.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, loss

    losses = []
    for _ in range(3):
        model, state, loss = step(model, state)
        losses.append(float(loss))
    assert losses[2] < losses[0]


# ---- saved


@mainly("Lamb")
def test_resumes_bit_for_bit_from_flax_bytes(name):
    serialization = pytest.importorskip("flax.serialization")
    _resumes(name, lambda state, like: serialization.from_bytes(like, serialization.to_bytes(state)))


@mainly("Lars")
def test_resumes_bit_for_bit_from_a_pickle(name):
    _resumes(name, lambda state, like: pickle.loads(pickle.dumps(state)))


@pytest.mark.filterwarnings("ignore")  # orbax and what it imports have their own
@mainly("Adafactor")
def test_resumes_bit_for_bit_from_orbax(name, tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")

    def through(state, like):
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / "state", state)
            checkpointer.wait_until_finished()
            return checkpointer.restore(tmp_path / "state", jax.tree.map(jnp.zeros_like, like))

    _resumes(name, through)


def _resumes(name, through):
    opt, grads = made(name, stats=True), gradients(4)
    params, state = run(opt, tree(0), grads[:2])
    again = FRONTS[name](**{**BUSY[name], "stats": True})  # a program that goes on has made an optimizer of its own
    restored = through(state, again.init(params))
    same(restored, state)
    same(goes_on(again, params, restored, grads[2:]), run(opt, tree(0), grads))


@pytest.mark.parametrize("beta2", [0.6, ramp], ids=["number", "function"])
def test_inject_beta2(beta2):
    """A function becomes a schedule of the wrapper's, and is told the same count."""
    params, grads = tree(0), gradients(3)
    options = {"learning_rate": 0.1, "beta2": beta2, "min_dim_size_to_factor": 0}
    injected = optax.inject_hyperparams(front.adafactor, static_args=("min_dim_size_to_factor",))(**options)
    found, state = run(injected, params, grads)
    assert "beta2" in state.hyperparams
    close(found, run(front.adafactor(**options), params, grads)[0], 5e-6)
