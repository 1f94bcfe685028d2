"""What is said of parameters by trees (masks, blocks), and which leaves trees may have."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_front.front import (
    DECAY_MASK,
    LITTLE,
    NAMES,
    WITH_RATIO,
    close,
    gradients,
    made,
    mainly,
    run,
    same,
    taken,
    tree,
)

from layerwise import Blocks
from layerwise import jax as front

pytestmark = pytest.mark.thinned(1, 2)

each = pytest.mark.parametrize("name", NAMES)
MASK = {"w": True, "b": False, "s": True, "deep": False}


def moved(name, **options):
    return run(made(name, **options), tree(0), gradients(2))[0]


def program(name, params, **options):
    """The program of a step, in words."""
    opt = made(name, **options)
    return str(jax.make_jaxpr(opt.update)(params, opt.init(params), params))


# ---- masks


@each
def test_a_mask_is_a_tree_a_prefix_or_a_callable(name):
    """Of what Python, NumPy or JAX call true, also where what jax.numpy makes would be traced."""
    params = tree(0, {"w": (3, 2), "deep": {"k": (2,), "v": (4,)}})
    prefix = {"w": True, "deep": False}

    def whole(make):
        return {"w": make(True), "deep": {"k": make(False), "v": make(False)}}

    ratio = {"adapt": True} if name in WITH_RATIO else {}
    for option in [DECAY_MASK[name], *(["trust_ratio_mask"] if ratio else [])]:
        wanted = program(name, params, **{option: prefix}, **ratio)
        assert wanted not in (program(name, params, **ratio), program(name, params, **{option: False}, **ratio))
        for mask in (lambda _: whole(jnp.array), *map(whole, (bool, np.array, np.bool_, jnp.array))):
            assert program(name, params, **{option: mask}, **ratio) == wanted


@mainly("Lamb")
def test_masked_parameters_do_not_decay(name):
    masked, decayed = moved(name, **{DECAY_MASK[name]: MASK}), moved(name)
    undecayed = moved(name, **taken(name, {"weight_decay_rate": 0, "weight_decay": 0}))
    for key, keep in MASK.items():
        same(masked[key], (decayed if keep else undecayed)[key])
        if key != "s":  # a number of its own moves by lr of its size, whatever pulls it
            assert not np.array_equal(jax.tree.leaves(decayed[key])[0], jax.tree.leaves(undecayed[key])[0])


@pytest.mark.parametrize("name", WITH_RATIO)
def test_the_ratio_has_a_mask_of_its_own(name):
    ratio = {"adapt": True}
    masked, plain = moved(name, trust_ratio_mask=MASK, **ratio), moved(name, adapt=False)
    adapted = moved(name, **ratio)
    for key, keep in MASK.items():
        same(masked[key], (adapted if keep else plain)[key])
    both = moved(name, trust_ratio_mask=MASK, **ratio, **{DECAY_MASK[name]: {**MASK, "w": False}})
    same(both["b"], moved(name, adapt=False, weight_decay=0)["b"])
    same(both["w"], moved(name, weight_decay=0, **ratio)["w"])


def test_lars_s_masks_are_optax_s():
    options = {"learning_rate": 0.1, "weight_decay": 0.1, "weight_decay_mask": MASK, "trust_ratio_mask": MASK}
    ours, theirs = (run(make(**options), tree(0), gradients(3))[0] for make in (front.lars, optax.lars))
    close(ours, theirs)


# ---- blocks


@mainly("Lamb")
def test_blocks_are_a_value_for_all_a_tree_a_prefix_or_a_callable(name):
    """Also of several leading axes."""
    params, each_pair = tree(0, {"k": (2, 3, 5, 4), "deep": {"v": (2, 3, 4)}}), Blocks("each", axis=(0, 1))
    wanted = program(name, params, blocks={"k": each_pair, "deep": {"v": each_pair}})
    for blocks in (each_pair, {"k": each_pair, "deep": each_pair}, lambda _: each_pair):
        assert program(name, params, blocks=blocks) == wanted
    each_one = jax.tree.map(lambda x: list(x.reshape(-1, *x.shape[2:])), params)
    together, _ = run(made(name, blocks=each_pair), params, [params])
    close(jax.tree.map(lambda x: list(x.reshape(-1, *x.shape[2:])), together), run(made(name), each_one, [each_one])[0])


# ---- leaves


@mainly("Lamb")
def test_none_leaves_stay_none(name):
    def with_none(one):
        return {**one, "none": None, "deep": {**one["deep"], "none": None}}

    ours, _ = run(made(name), with_none(tree(0)), [with_none(g) for g in gradients(2)])
    close(ours, with_none(moved(name)))


@mainly("Adafactor")
def test_a_parameter_without_gradient_is_left_alone(name):
    shapes = {"w": (5, 4), "b": (4,)}
    opt, params = made(name), tree(0, shapes)
    update = jax.jit(opt.update)
    _, state = update({**tree(1, shapes), "w": None}, opt.init(params), params)
    updates, after = update({**tree(2, shapes), "w": None}, state, params)
    assert not np.any(updates["w"])
    assert np.any(updates["b"])
    for part in state._fields[1:]:
        old, new = getattr(state, part), getattr(after, part)
        if old is not None and old["w"] is not None:
            same(old["w"], new["w"])
    same(optax.apply_updates(params, updates)["w"], params["w"])


@pytest.mark.parametrize("params", [jnp.ones(3), [jnp.ones((2, 2)), (jnp.ones(1),)], {}, 2.0], ids=str)
def test_parameters_may_be_any_tree(params):
    opt = made("Lars")
    updates, state = jax.jit(opt.update)(jax.tree.map(jnp.ones_like, params), opt.init(params), params)
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    assert int(state.count) == 1


@mainly("Lars")
def test_integers_stay_as_they_are(name):
    """As with optax, where the gradient of an integer is 0, and of no type, as jax.grad gives it."""
    still = {"count": jnp.arange(3), "on": jnp.array(True), "n": 3}
    zeros = {"count": jnp.zeros(3, int), "on": np.zeros((), jax.dtypes.float0), "n": None}
    opt = made(name, stats=True)
    params, grads = tree(0, LITTLE), gradients(2, LITTLE)
    alone, _ = run(opt, params, grads)
    both, state = run(opt, {**params, "still": still}, [{**g, "still": zeros} for g in grads])
    same({k: both[k] for k in alone}, alone)
    same(both["still"], jax.tree.map(jnp.asarray, still))
    assert front.stats(state).keys() == {"w", "b"}


def test_a_mask_may_include_integer_leaves():
    params = {"w": jnp.ones(3), "n": jnp.arange(3)}
    program("Lamb", params, mask={"w": True, "n": False}, blocks={"w": None, "n": None})


@pytest.mark.parametrize("x64", [False, True], ids=["without_x64", "with_x64"])
def test_numpy_s_float64_stays_wide_with_x64(x64, request):
    if x64:
        request.getfixturevalue("jax64")
    opt, params = made("SGD"), {"w": np.ones((4, 3))}
    updates, _ = opt.update(params, opt.init(params), params)
    assert updates["w"].dtype == ("float64" if x64 else "float32")
    narrow = jax.tree.map(jnp.asarray, params)
    same(updates, opt.update(narrow, opt.init(narrow), narrow)[0])
