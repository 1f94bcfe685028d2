"""What is said of parameters by trees: masks and blocks; None leaves, names, and trees that cannot be."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from draws import seeds
from jax_front.front import (
    BY_NAME,
    DECAY_MASK,
    FRONTS,
    NAMES,
    THEIRS,
    WITH_RATIO,
    arguments,
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
from layerwise.errors import (
    ContradictionError,
    GradientError,
    HyperparameterError,
    LayerwiseError,
    ParameterError,
    StateError,
)
from layerwise.jax import _trees

pytestmark = pytest.mark.thinned(1, 2)

each = pytest.mark.parametrize("name", NAMES)
MASK = {"w": True, "b": False, "s": True, "deep": False}


def moved(name, **options):
    params, _ = run(made(name, **options), tree(0), gradients(2))
    return params


# ---- masks


@mainly("Lamb")
def test_a_mask_is_a_tree_a_prefix_or_a_callable(name):
    by_prefix = moved(name, **{DECAY_MASK[name]: MASK})
    whole = jax.tree.map(lambda keep, under: jax.tree.map(lambda _: keep, under), MASK, tree(0))
    same(moved(name, **{DECAY_MASK[name]: whole}), by_prefix)
    same(moved(name, **{DECAY_MASK[name]: lambda params: MASK}), by_prefix)
    theirs = jax.tree.map(lambda keep: keep, MASK)
    decay = taken(name, {"weight_decay_rate": 0, "weight_decay": 0})
    undecayed, decayed = moved(name, **decay), moved(name)
    for key, keep in theirs.items():
        same(by_prefix[key], (decayed if keep else undecayed)[key])
        if key != "s":  # a number of its own moves by lr of its size, whatever pulls it
            assert not np.array_equal(jax.tree.leaves(decayed[key])[0], jax.tree.leaves(undecayed[key])[0])


@pytest.mark.parametrize("name", WITH_RATIO)
def test_the_ratio_has_a_mask_of_its_own(name):
    masked, plain, adapted = moved(name, trust_ratio_mask=MASK), moved(name, adapt=False), moved(name)
    for key, keep in MASK.items():
        same(masked[key], (adapted if keep else plain)[key])
    both = moved(name, trust_ratio_mask=MASK, **{DECAY_MASK[name]: {**MASK, "w": False}})
    same(both["b"], moved(name, adapt=False, weight_decay=0)["b"])
    same(both["w"], moved(name, weight_decay=0)["w"])


def test_lars_s_masks_are_optax_s():
    options = {"learning_rate": 0.1, "weight_decay": 0.1, "weight_decay_mask": MASK, "trust_ratio_mask": MASK}
    ours, _ = run(front.lars(**options), tree(0), gradients(3))
    theirs, _ = run(optax.lars(**options), tree(0), gradients(3))
    close(ours, theirs)


@each
@pytest.mark.parametrize("mask", [{"w": True}, [True], {**MASK, "w": 1}, {**MASK, "deep": {"k": "no", "zero": True}}])
def test_masks_that_cannot_be(name, mask):
    opt = made(name, **{DECAY_MASK[name]: mask})
    with pytest.raises(HyperparameterError, match=DECAY_MASK[name]):
        opt.init(tree(0))


def test_a_mask_beside_adapt_false():
    with pytest.raises(ContradictionError, match="trust_ratio_mask"):
        front.lamb(0.1, adapt=False, trust_ratio_mask=MASK)


# ---- blocks


STACKED = {"layers": {"k": (3, 6, 4), "b": (3, 4)}, "head": (4, 2)}


def unstacked(params):
    layers = [jax.tree.map(lambda x, i=i: x[i], params["layers"]) for i in range(3)]
    return {"layers": layers, "head": params["head"]}


@pytest.mark.parametrize("seed", seeds(1, 4))
@each
@pytest.mark.kinds("rows and columns", "factored", "numbers of a layer")
def test_scanned_layers_are_the_unrolled_model(name, seed, jax64):
    """Step for step, and with everything drawn that an option can be."""
    case = BY_NAME[name]
    options = {**arguments(case, case.drawn(seed)), "stats": True}
    if options.get("factored") not in (None, False, True, "last"):
        options["factored"] = "last"
    params, grads = tree(0, STACKED, "float64"), [tree(i, STACKED, "float64") for i in range(1, 4)]
    together, state = run(FRONTS[name](**options, blocks={"layers": "each", "head": None}), params, grads)
    alone, alone_state = run(FRONTS[name](**options), unstacked(params), [unstacked(g) for g in grads])
    close(unstacked(together), alone, 1e-12)
    found, wanted = front.stats(state), front.stats(alone_state)
    for key in ("k", "b"):
        for measured, values in found[f"layers/{key}"].items():
            assert values.shape == (3,)
            for i in range(3):
                np.testing.assert_allclose(values[i], wanted[f"layers/{i}/{key}"][measured], rtol=1e-10)


@mainly("Lars")
def test_without_blocks_a_stack_is_one_layer(name):
    params, grads = tree(0, STACKED), [tree(1, STACKED)]
    together, _ = run(made(name), params, grads)
    blocked, _ = run(made(name, blocks=lambda params: {"layers": "each", "head": None}), params, grads)
    assert not np.allclose(together["layers"]["k"], blocked["layers"]["k"], rtol=1e-3, atol=0)
    same(together["head"], blocked["head"])


CUTS = [
    (Blocks(3), (6, 4)),
    (Blocks(2, axis=1), (6, 4)),
    (Blocks((1, 3, 2)), (6, 4)),
    (Blocks("each", axis=-1), (6, 4)),
]


@pytest.mark.parametrize(("blocks", "shape"), CUTS, ids=str)
@each
def test_every_kind_of_block(name, blocks, shape, jax64):
    params, grads = tree(0, {"w": shape}, "float64"), [tree(i, {"w": shape}, "float64") for i in (1, 2)]

    def apart(one):
        lengths = {"each": [1] * shape[blocks.axis]}.get(str(blocks.split), blocks.split)
        lengths = [shape[blocks.axis] // lengths] * lengths if isinstance(lengths, int) else list(lengths)
        pieces = np.split(np.asarray(one["w"]), np.cumsum(lengths)[:-1], axis=blocks.axis)
        return [jnp.squeeze(jnp.asarray(x), blocks.axis) if blocks.split == "each" else jnp.asarray(x) for x in pieces]

    together, state = run(made(name, blocks={"w": blocks}), params, grads)
    alone, _ = run(made(name), apart(params), [apart(g) for g in grads])
    close(apart(together), alone, 1e-7 if name == "Adafactor" else 1e-12)
    again, _ = jax.jit(made(name, blocks={"w": blocks}).update)(grads[0], state, params)
    assert again["w"].shape == shape


@mainly("Lamb")
def test_several_leading_axes(name, jax64):
    shape = {"w": (2, 3, 5, 4)}
    params, grads = tree(0, shape, "float64"), [tree(i, shape, "float64") for i in (1, 2)]

    def apart(one):
        return [one["w"][i, j] for i in range(2) for j in range(3)]

    together, _ = run(made(name, blocks=Blocks("each", axis=(0, 1))), params, grads)
    alone, _ = run(made(name), apart(params), [apart(g) for g in grads])
    close(apart(together), alone, 1e-7 if name == "Adafactor" else 1e-12)


@each
@pytest.mark.parametrize(
    "blocks", [{"layers": 0, "head": None}, {"layers": "every", "head": 1}, {"layers": True, "head": 1}]
)
def test_blocks_that_cannot_be(name, blocks):
    with pytest.raises(HyperparameterError, match="blocks"):
        made(name, blocks=blocks).init(tree(0, STACKED))


@each
def test_blocks_that_do_not_fit(name):
    with pytest.raises(ParameterError, match="layers/k"):
        made(name, blocks={"layers": {"k": 2, "b": None}, "head": None}).init(tree(0, STACKED))


# ---- None, and other trees


@mainly("Lamb")
def test_none_leaves(name):
    params, grads = tree(0), gradients(2)
    with_none = {**params, "none": None, "deep": {**params["deep"], "none": None}}
    ours, state = run(made(name), with_none, [{**g, "none": None, "deep": {**g["deep"], "none": None}} for g in grads])
    plain, _ = run(made(name), params, grads)
    close({**ours, "none": None}, {**plain, "none": None, "deep": {**plain["deep"], "none": None}})
    assert state is not None


@mainly("Adafactor")
def test_a_parameter_without_gradient_is_left_alone(name):
    opt, params = made(name), tree(0)
    _, state = jax.jit(opt.update)(tree(1), opt.init(params), params)
    updates, after = jax.jit(opt.update)({**tree(2), "w": None}, state, params)
    assert not np.any(updates["w"])
    assert np.any(updates["b"])
    for part in state._fields[1:]:
        old, new = getattr(state, part), getattr(after, part)
        if old is not None and old["w"] is not None:
            same(old["w"], new["w"])
    same(optax.apply_updates(params, updates)["w"], params["w"])


@mainly("Lars")
@pytest.mark.parametrize("params", [jnp.ones(3), [jnp.ones((2, 2)), (jnp.ones(1),)], {}, 2.0])
def test_any_tree(name, params):
    opt = made(name)
    updates, state = jax.jit(opt.update)(jax.tree.map(jnp.ones_like, params), opt.init(params), params)
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    assert int(state.count) == 1


# ---- what is refused


@each
def test_parameters_are_needed(name):
    opt, params = made(name), tree(0)
    with pytest.raises(ParameterError, match="params"):
        jax.jit(opt.update)(params, opt.init(params))


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.0}], ids=str)
def test_sgd_without_decay_needs_none(options):
    grads = gradients(3)
    ours, theirs = (optax.chain(optax.clip(0.5), made(0.1, **options)) for made in (front.sgd, optax.sgd))
    ours, theirs = ((opt, opt.init(tree(0))) for opt in (ours, theirs))
    for g in grads:
        updates, both = [], []
        for opt, state in (ours, theirs):
            found, after = jax.jit(opt.update)(g, state)
            updates.append(found)
            both.append((opt, after))
        ours, theirs = both
        close(*updates, 1e-6)
    for needing in (
        {"weight_decay": 0.1},
        {"weight_decay": lambda count: 0.0 * count},
        {"master_weights": True},
        {"rounding": "stochastic"},
        {"state_dtype": "int8"},
    ):
        opt = front.sgd(0.1, momentum=0.9, **needing)
        with pytest.raises(ParameterError, match=f"a step with `{next(iter(needing))}`.* depends on the parameters"):
            opt.update(grads[0], opt.init(tree(0)))
    with pytest.raises(ParameterError, match="`weight_decay`, unless that is known to be 0"):
        jax.jit(lambda decay: front.sgd(0.1, weight_decay=decay).update(grads[0], front.sgd(0.1).init(tree(0))))(0.0)
    lamb = front.lamb(0.1)
    with pytest.raises(ParameterError, match=r"^the step depends on the parameters"):
        lamb.update(grads[0], lamb.init(tree(0)))


@each
@pytest.mark.parametrize("leaf", [jax.random.key(0), "w", object()], ids=["key", "text", "object"])
def test_what_is_no_parameter(name, leaf):
    with pytest.raises(ParameterError, match="deep/w must be"):
        made(name).init({"deep": {"w": leaf}})


@each
@pytest.mark.parametrize(
    ("g", "says"),
    [
        ({"w": jnp.ones(3)}, "shape"),
        ({"w": jnp.ones(2, jnp.int32)}, "floating"),
        ({"w": jnp.ones(2, jnp.complex64)}, "complex"),
        ({"w": "1"}, "floating"),
        ({"v": jnp.ones(2)}, "no tree like"),
        (None, "no tree like"),
    ],
)
def test_gradients_that_do_not_fit(name, g, says):
    opt, params = made(name), {"w": jnp.ones(2)}
    with pytest.raises(GradientError, match=says):
        opt.update(g, opt.init(params), params)


@each
def test_states_that_do_not_fit(name):
    opt, params = made(name), {"w": jnp.ones((4, 3))}
    with pytest.raises(StateError, match=r"of w must have"):
        opt.update(params, opt.init({"w": jnp.ones((4, 2))}), params)
    with pytest.raises(StateError, match="no tree like"):
        opt.update(params, opt.init({"v": jnp.ones((4, 3))}), params)
    with pytest.raises(StateError, match="must be of type"):
        opt.update(params, optax.adam(0.1).init(params), params)
    with pytest.raises(StateError, match="stats"):
        made(name, stats=True).update(params, opt.init(params), params)


@each
@pytest.mark.parametrize("count", [jnp.zeros(2, jnp.int32), jnp.float32(1), 1.5, True, None, -1, "1"], ids=str)
def test_a_count_that_does_not_count(name, count):
    opt, params = made(name), {"w": jnp.ones(2)}
    with pytest.raises(StateError, match=r"`count` must be .* Make the state with init"):
        opt.update(params, opt.init(params)._replace(count=count), params)


@mainly("Lamb")
def test_a_negative_count_is_refused_where_it_is_known_and_else_0(name):
    opt, params = made(name), {"w": jnp.ones(2)}
    state = opt.init(params)
    for count in (jnp.int32(-1).block_until_ready(), np.array(-7)):
        with pytest.raises(StateError, match=r"`count` must be ≥ 0"):
            opt.update(params, state._replace(count=count), params)
    update = jax.jit(opt.update)
    same(update(params, state._replace(count=jnp.int32(-7)), params), update(params, state, params))


@mainly("Lars")
def test_a_count_may_be_any_integer(name):
    opt, params = made(name), {"w": jnp.ones(2)}
    expected = opt.update(params, opt.init(params)._replace(count=jnp.int32(5)), params)
    for count in (5, np.int64(5), np.array(5)):
        close(opt.update(params, opt.init(params)._replace(count=count), params), expected)


@each
@pytest.mark.parametrize("one", [1.0, np.ones((4, 3), int), "w"], ids=str)
def test_a_part_of_the_state_that_is_no_such_array(name, one):
    opt, params = made(name), {"w": jnp.ones((4, 3))}
    state = opt.init(params)
    part = next(part for part in ("mu", "trace", "ema", *state._fields[1:]) if part in state._fields)
    with pytest.raises(StateError, match=f"{part} of w must "):
        opt.update(params, state._replace(**{part: {"w": one}}), params)


@pytest.mark.parametrize("name", THEIRS)
def test_the_state_of_optax_names_its_converter(name):
    theirs = THEIRS[name](0.1)
    params = {"w": jnp.ones(2)}
    with pytest.raises(StateError, match=r"convert\.from_optax\(state, optimizer, params\)"):
        made(name).update(params, theirs.init(params), params)


# ---- masks of arrays, integers, and wide numbers


@mainly("Lars")
@pytest.mark.parametrize("true", [jnp.array(True), np.array(True), np.True_], ids=["jax", "numpy", "scalar"])
def test_masks_may_be_made_of_arrays(name, true):
    def array(keep):
        return true if keep else ~true

    expected = moved(name, **{DECAY_MASK[name]: MASK})
    same(moved(name, **{DECAY_MASK[name]: jax.tree.map(array, MASK)}), expected)
    if name in WITH_RATIO:
        by_array, by_bool = moved(name, trust_ratio_mask=jax.tree.map(array, MASK)), moved(name, trust_ratio_mask=MASK)
        same(by_array, by_bool)


@mainly("Lars")
def test_a_callable_mask_may_use_jax(name):
    """Also inside jit, where what jax.numpy makes is traced unless it is asked to be known."""
    mask = {DECAY_MASK[name]: lambda params: jax.tree.map(lambda x: jnp.asarray(x.ndim > 1), params)}
    plain = {DECAY_MASK[name]: lambda params: jax.tree.map(lambda x: x.ndim > 1, params)}
    same(moved(name, **mask), moved(name, **plain))


@each
def test_masks_of_other_arrays_are_refused(name):
    for one in (jnp.ones(2, bool), jnp.array(1), jnp.array(1.0)):
        with pytest.raises(HyperparameterError, match=DECAY_MASK[name]):
            made(name, **{DECAY_MASK[name]: {**MASK, "w": one}}).init(tree(0))


@mainly("Lars")
@pytest.mark.parametrize("zero", [jnp.zeros, lambda n, _: np.zeros(n, jax.dtypes.float0), lambda *_: None])
def test_integers_stay_as_they_are(name, zero):
    """As with optax, where the gradient of an integer is 0, and of no type, as jax.grad gives it."""
    params, still = tree(0), {"count": jnp.arange(3), "on": jnp.array(True), "n": 3}
    gs = gradients(2)
    opt = made(name, stats=True)
    alone, _ = run(opt, params, gs)
    both, state = run(
        opt,
        {**params, "still": still},
        [{**g, "still": {k: zero(jnp.shape(v), int) for k, v in still.items()}} for g in gs],
    )
    same({k: both[k] for k in params}, alone)
    same(both["still"], jax.tree.map(jnp.asarray, still))
    assert [x.dtype for x in jax.tree.leaves(both["still"])] == [jnp.asarray(x).dtype for x in jax.tree.leaves(still)]
    assert front.stats(state).keys() == {"w", "b", "s", "deep/k", "deep/zero"}


def test_a_mask_may_speak_of_integers():
    params = {"w": jnp.ones(3), "n": jnp.arange(3)}
    opt = front.lamb(0.1, weight_decay=0.1, mask={"w": True, "n": False}, blocks={"w": None, "n": None})
    updates, _ = opt.update(params, opt.init(params), params)
    assert not np.any(updates["n"])


@mainly("Lamb")
def test_wide_numbers_without_x64_warn_once(name):
    _trees._warn_of.cache_clear()
    params = {"w": np.ones((4, 3))}
    opt = made(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            state = opt.init(params)
            updates, state = opt.update(params, state, params)
    [one] = caught
    assert "float64" in str(one.message)
    assert "jax_enable_x64" in str(one.message)
    assert updates["w"].dtype == jnp.float32
    narrow = jax.tree.map(jnp.asarray, params)
    same(updates, opt.update(narrow, opt.init(narrow), narrow)[0])


@mainly("Lars")
def test_wide_numbers_with_x64_stay_wide(name, jax64):
    _trees._warn_of.cache_clear()
    params = {"w": np.ones((4, 3))}
    opt = made(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        updates, _ = opt.update(params, opt.init(params), params)
    assert updates["w"].dtype == jnp.float64


@each
def test_complex_numbers_are_not_clipped_by_value(name):
    with pytest.raises(ParameterError, match="complex"):
        made(name, max_grad_value=1.0).init({"w": jnp.ones(2, jnp.complex64)})


OF_ALL = [
    ("learning_rate", -1.0), ("learning_rate", "0.1"), ("eps", -1),
    ("adapt", "never"), ("trust_clip", (2, 1)), ("min_norm", -1), ("max_grad_norm", -1), ("max_grad_value", (1, 0)),
]  # fmt: skip
BAD = {
    "Lamb": [
        ("learning_rate", None), ("weight_decay", -0.1), ("b1", 1.0), ("b2", 1.5), ("b1", float("nan")),
        ("eps_root", "0"), ("decay", "L2"), ("trust_eps", None),
        ("l2", "0"),
    ],
    "Lars": [
        ("weight_decay", -1), ("momentum", 1.0), ("trust_coefficient", 0), ("nesterov", 1), ("norm", "g"),
        ("dampening", 2),
        ("min_norm", "1"), ("l2", -1),
    ],
    "Adafactor": [
        ("min_dim_size_to_factor", -1), ("min_dim_size_to_factor", 1.5), ("decay_rate", -0.8),
        ("decay_offset", -1), ("multiply_by_parameter_scale", 1), ("clipping_threshold", 0), ("momentum", 1.0),
        ("weight_decay_rate", -1), ("eps", 0), ("eps", (1, 2, 3)), ("factored", "first"), ("decay_scale", "all"),
        ("beta2", 1.0), ("beta2", "0.9"),
    ],
}  # fmt: skip


REFUSED = [(n, *one) for n in NAMES for one in OF_ALL + BAD.get(n, [])]


@pytest.mark.parametrize(("name", "option", "value"), REFUSED, ids=str)
def test_options_out_of_range_are_named(name, option, value):
    with pytest.raises(HyperparameterError) as caught:
        made(name, **{option: value})
    said = str(caught.value).split(" must be ")[0]
    assert option in said
    assert len(str(caught.value).split(". ")) >= 2


@each
@pytest.mark.parametrize(
    "options",
    [
        {"stats": 1},
        {"axis_name": 3},
        {"axis_name": ()},
        {"specs": jax.sharding.PartitionSpec("x")},
        {"blocks": 2, "axis_name": "x"},
    ],
)
def test_options_of_the_front_are_checked(name, options):
    with pytest.raises(LayerwiseError, match=next(iter(options)).replace("blocks", "specs")):
        made(name, **options)


@each
def test_unknown_arguments(name):
    with pytest.raises(TypeError, match="lr"):
        FRONTS[name](lr=0.1)


def test_contradictions():
    with pytest.raises(ContradictionError, match="learning_rate"):
        front.adafactor(0.1, relative_step=True)
    with pytest.raises(ContradictionError, match="warmup_init"):
        front.adafactor(0.1, warmup_init=True)
    with pytest.raises(ContradictionError, match="nesterov"):
        front.lars(0.1, nesterov=True, dampening=0.5)
    with pytest.raises(HyperparameterError, match="dtype_momentum"):
        front.adafactor(0.1, momentum=0.9, dtype_momentum="float9")


@each
@pytest.mark.parametrize("answer", [-1.0, float("nan"), "0.1", jnp.ones(2)], ids=str)
def test_a_schedule_answers_for_itself(name, answer):
    opt, params = made(name, learning_rate=lambda count: answer), tree(0)
    with pytest.raises(HyperparameterError, match="learning_rate"):
        jax.jit(opt.update)(params, opt.init(params), params)


@pytest.mark.parametrize("answer", [-1.0, 1.0, float("nan"), "0.1", jnp.ones(2), 1j * jnp.ones(())], ids=str)
def test_a_function_for_beta2_answers_for_itself(answer):
    opt, params = made("Adafactor", beta2=lambda count: answer), tree(0)
    with pytest.raises(HyperparameterError, match="beta2"):
        jax.jit(opt.update)(params, opt.init(params), params)


def test_one_of_two_bounds_may_be_traced():
    params, g = tree(0), tree(1)

    def stepped(bounds):
        opt = made("Lamb", max_grad_value=bounds, trust_clip=(0.1, bounds[1]))
        return opt.update(g, opt.init(params), params)[0]

    close(jax.jit(lambda high: stepped((-0.5, high)))(0.2), stepped((-0.5, 0.2)))
    close(jax.jit(lambda low: stepped((low, 0.2)))(-0.5), stepped((-0.5, 0.2)))
