"""What cannot be is refused before a step, by an error that names it: trees, leaves, states and options."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_front.front import DECAY_MASK, NAMES, THEIRS, close, gradients, made, mainly, same, tree
from jax_front.test_trees import MASK

from layerwise import jax as front
from layerwise.errors import (
    ContradictionError,
    GradientError,
    HyperparameterError,
    LayerwiseError,
    ParameterError,
    StateError,
)

pytestmark = pytest.mark.thinned(1, 2)

each = pytest.mark.parametrize("name", NAMES)
W = {"w": jnp.ones((4, 3))}


# ---- parameters and gradients


@each
@pytest.mark.parametrize(
    ("leaf", "options", "says"),
    [
        (jax.random.key(0), {}, "deep/w must have a floating-point dtype"),
        ("w", {}, "deep/w must be an array"),
        (object(), {}, "deep/w must be an array"),
        (jnp.ones(2, "float8_e4m3fn"), {}, "deep/w must have a floating-point dtype of 16 to 64 bits"),
        (jnp.ones(2, "complex64"), {"max_grad_value": 1.0}, "deep/w is complex, but max_grad_value"),
    ],
    ids=["key", "text", "object", "float8", "complex"],
)
def test_an_invalid_parameter_is_named(name, leaf, options, says):
    with pytest.raises(ParameterError, match=says):
        made(name, **options).init({"deep": {"w": leaf}})


@each
@pytest.mark.parametrize(
    ("g", "says"),
    [
        ({"w": jnp.ones((3, 4))}, r"of w has the shape \(3, 4\), but its parameter has \(4, 3\)"),
        ({"w": jnp.ones((4, 3), int)}, "of w must be a floating-point array"),
        ({"w": "1"}, "of w must be a floating-point array, but is '1'"),
        ({"w": jnp.ones((4, 3), complex)}, "of w is complex"),
        ({"v": jnp.ones((4, 3))}, "a tree like the parameters, but `w` is missing"),
        ({**W, "v": jnp.ones((4, 3))}, "a tree like the parameters, but `v` is not among them"),
        (None, "a tree like the parameters, but it is a NoneType instead of a dict"),
    ],
    ids=["shape", "integers", "text", "complex", "name", "more", "none"],
)
def test_a_gradient_that_does_not_fit_is_named(name, g, says):
    opt = made(name)
    with pytest.raises(GradientError, match=says):
        opt.update(g, opt.init(W), W)


@each
def test_parameters_are_needed(name):
    opt = made(name)
    with pytest.raises(ParameterError, match="Call update\\(updates, state, params\\)"):
        jax.jit(opt.update)(W, opt.init(W))
    with pytest.raises(ParameterError, match=r"^the step depends on the parameters"):
        front.lamb(0.1).update(W, front.lamb(0.1).init(W))


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.0}, {"accumulator_dtype": "bfloat16"}],
    ids=str,
)
def test_sgd_without_decay_needs_no_parameters(options):
    found = []
    for make in (front.sgd, optax.sgd):
        opt = optax.chain(optax.clip(0.5), make(0.1, **options))
        state, update = opt.init(tree(0)), jax.jit(opt.update)
        for g in gradients(2):
            updates, state = update(g, state)
            found.append(updates)
    close(found[:2], found[2:], 1e-6)


@pytest.mark.parametrize(
    "needing",
    [
        {"weight_decay": 0.1},
        {"weight_decay": lambda count: 0.0 * count},
        {"master_weights": True},
        {"rounding": "stochastic"},
        {"state_dtype": "int8"},
    ],
)
def test_options_that_need_parameters_are_named(needing):
    opt = front.sgd(0.1, momentum=0.9, **needing)
    with pytest.raises(ParameterError, match=f"a step with `{next(iter(needing))}`.* depends on the parameters"):
        opt.update(W, opt.init(W))


def test_a_traced_decay_needs_parameters():
    with pytest.raises(ParameterError, match="`weight_decay`, unless that is known to be 0"):
        jax.jit(lambda decay: front.sgd(0.1, weight_decay=decay).update(W, front.sgd(0.1).init(W)))(0.0)


def test_a_message_names_the_first_place_that_differs_and_prints_no_arrays():
    params = {f"layer{i}": {"kernel": jnp.ones((300, 300)), "stack": [jnp.ones(3)] * 2} for i in range(50)}
    opt, states = made("Lamb"), made("Lamb").init(params)
    integers = {**params, "layer3": {**params["layer3"], "kernel": jnp.ones((300, 300), int)}}
    tuples = {**params, "layer3": {**params["layer3"], "stack": (jnp.ones(3),) * 2}}
    for call, says in (
        (lambda: opt.update(jax.tree.leaves(params), states, params), "it is a list instead of a dict"),
        (lambda: opt.update(params, params, states), "the third argument is a LambState, not parameters"),
        (lambda: opt.update(tuples, states, params), "`layer3/stack` is a tuple instead of a list"),
        (lambda: opt.update(integers, states, params), "layer3/kernel must be .* shape"),
        (lambda: opt.update({**params, "layer3": {}}, states, params), "`layer3/kernel` is missing"),
        (lambda: opt.update(params, states._replace(mu=tuples), params), "`layer3/stack` is a tuple"),
        (lambda: opt.update(params, states._replace(mu=integers), params), "mu of layer3/kernel must be"),
        (lambda: opt.update(params, states._replace(count=params), params), "`count` must be"),
        (lambda: made("Lamb", mask=tuples).init(params), "`mask` must be .* `layer3/stack` is a tuple"),
        (lambda: made("Lamb", mask={**dict.fromkeys(params, True), "x": True}).init(params), "`x` is not among them"),
        (lambda: made("Lamb", mask=[True]).init(params), "it is a list instead of a dict"),
    ):
        with pytest.raises(LayerwiseError, match=says) as caught:
            call()
        assert len(str(caught.value)) < 500
        assert "\n" not in str(caught.value)


# ---- states


@each
def test_a_state_that_does_not_fit_is_refused(name):
    opt = made(name)
    for state, says in (
        (opt.init({"w": jnp.ones((4, 2))}), r"of w must have"),
        (opt.init({"v": jnp.ones((4, 3))}), "must be a tree like the parameters, but `w` is missing"),
        (optax.adam(0.1).init(W), r"must be of type .*convert\.from_optax\(state, optimizer, params\)"),
        (made(name, stats=True).init(W), "made with stats=True"),
    ):
        with pytest.raises(StateError, match=says):
            opt.update(W, state, W)
    if name in THEIRS:
        with pytest.raises(StateError, match=r"convert\.from_optax\(state, optimizer, params\)"):
            opt.update(W, THEIRS[name](0.1).init(W), W)


@each
@pytest.mark.parametrize("one", [1.0, np.ones((4, 3), int), "w"], ids=str)
def test_a_part_of_the_state_that_is_no_such_array_is_named(name, one):
    opt = made(name)
    state = opt.init(W)
    part = next(part for part in ("mu", "trace", "ema", *state._fields[1:]) if part in state._fields)
    with pytest.raises(StateError, match=f"{part} of w must "):
        opt.update(W, state._replace(**{part: {"w": one}}), W)


@each
@pytest.mark.parametrize("count", [jnp.zeros(2, int), jnp.float32(1), 1.5, True, None, "1"], ids=str)
def test_an_invalid_count_is_refused(name, count):
    opt = made(name)
    with pytest.raises(StateError, match=r"`count` must be .* Create the state with init"):
        opt.update(W, opt.init(W)._replace(count=count), W)


@mainly("Lars")
def test_a_count_may_be_any_integer_and_a_negative_one_is_0(name):
    opt = made(name)
    update, state = jax.jit(opt.update), opt.init(W)
    wanted = update(W, state._replace(count=jnp.int32(5)), W)
    for count in (5, np.int64(5), np.array(5)):
        close(opt.update(W, state._replace(count=count), W), wanted)
    same(update(W, state._replace(count=jnp.int32(-7)), W), update(W, state, W))


# ---- options


@each
@pytest.mark.parametrize(
    "mask",
    [
        {"w": True},
        [True],
        {**MASK, "w": 1},
        {**MASK, "deep": {"k": "no", "zero": True}},
        *({**MASK, "w": one} for one in (jnp.ones(2, bool), jnp.array(1), jnp.array(1.0))),
    ],
    ids=str,
)
def test_a_mask_that_is_no_tree_of_true_and_false_is_named(name, mask):
    with pytest.raises(HyperparameterError, match=DECAY_MASK[name]):
        made(name, **{DECAY_MASK[name]: mask}).init(tree(0))


def test_a_mask_that_is_traced_is_refused():
    with pytest.raises(HyperparameterError, match="consists of True and False"):
        jax.jit(lambda mask: made("Lamb", mask={"w": mask}).init(W))(jnp.array(True))


NAN = float("nan")
# Whose names or ranges are optax's, of which the rule's own tests know nothing.
BAD = {
    "Lamb": {"learning_rate": (-1.0, "0.1", None), "b1": (1.0, NAN), "b2": (1.5,)},
    "Lars": {"weight_decay": (-1,), "momentum": (1.0,)},
    "Adafactor": {
        "decay_rate": (-0.8,), "momentum": (1.0,), "multiply_by_parameter_scale": (1,), "clipping_threshold": (0,),
        "weight_decay_rate": (-1,), "eps": (0, (1, 2, 3)), "decay_scale": ("all",), "beta2": (1.0, "0.9"),
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [(name, option, value) for name in BAD for option, values in BAD[name].items() for value in values],
    ids=str,
)
def test_an_option_out_of_its_range_is_named(name, option, value):
    with pytest.raises(HyperparameterError, match=rf"`?.*{option}.* must be .*\. ."):
        made(name, **{option: value})


@each
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"stats": 1}, "stats"),
        ({"axis_name": 3}, "axis_name"),
        ({"axis_name": ()}, "axis_name"),
        ({"specs": jax.sharding.PartitionSpec("x")}, "specs"),
        ({"axis_name": "x"}, "specs"),
    ],
    ids=str,
)
def test_options_of_all_functions_are_checked(name, options, named):
    with pytest.raises(LayerwiseError, match=named):
        made(name, **options)


@pytest.mark.parametrize(
    ("make", "options", "named"),
    [
        (front.lamb, {"adapt": False, "trust_ratio_mask": MASK}, "trust_ratio_mask"),
        (front.adafactor, {"relative_step": True}, "learning_rate"),
        (front.adafactor, {"warmup_init": True}, "warmup_init"),
        (front.lars, {"nesterov": True, "dampening": 0.5}, "nesterov"),
    ],
    ids=["mask", "relative_step", "warmup", "nesterov"],
)
def test_options_that_contradict_each_other_are_named(make, options, named):
    with pytest.raises(ContradictionError, match=named):
        make(0.1, **options)


def test_a_dtype_that_is_none_is_named():
    with pytest.raises(HyperparameterError, match="dtype_momentum"):
        front.adafactor(0.1, momentum=0.9, dtype_momentum="float9")


@pytest.mark.parametrize("option", ["learning_rate", "beta2"])
@pytest.mark.parametrize("answer", [-1.0, NAN, "0.1", jnp.ones(2), 1j * jnp.ones(())], ids=str)
def test_a_bad_value_of_a_function_names_the_call(option, answer):
    opt = made("Adafactor", **{option: lambda count: answer})
    for update in (opt.update, jax.jit(opt.update)):
        with pytest.raises(HyperparameterError, match=rf"`{option}\(.*\)` must be"):
            update(W, opt.init(W), W)


@pytest.mark.parametrize("answer", [np.array(-1.0), jnp.array(NAN)], ids=str)
def test_a_schedule_s_array_is_looked_at_where_its_number_is_known(answer):
    with pytest.raises(HyperparameterError, match=r"`learning_rate\(count\)` must be"):
        front.sgd(lambda count: answer).update(W, front.sgd(0.1).init(W), W)


def test_one_of_two_bounds_may_be_traced():
    def stepped(bounds):
        opt = front.lamb(0.1, max_grad_value=bounds, trust_clip=(0.1, bounds[1]))
        return opt.update({"w": jnp.arange(3.0)}, opt.init({"w": jnp.ones(3)}), {"w": jnp.ones(3)})[0]

    close(jax.jit(lambda high: stepped((-0.5, high)))(0.2), stepped((-0.5, 0.2)))
    close(jax.jit(lambda low: stepped((low, 0.2)))(-0.5), stepped((-0.5, 0.2)))


def test_what_is_of_another_library_or_place_is_named():
    torch = pytest.importorskip("torch")
    opt, params = front.lamb(0.1), {"w": jnp.ones(2)}
    state = opt.init(params)
    with pytest.raises(ParameterError, match=r"the third argument is a LambState, not parameters\. Call update\(grad"):
        opt.update(params, params, state)
    with pytest.raises(ParameterError, match=r"w must be an array of JAX or NumPy, but is a Tensor of torch\."):
        opt.init({"w": torch.ones(2)})
    with pytest.raises(GradientError, match=r"the gradient of w must be an array of JAX or NumPy, but is a Tensor of"):
        opt.update({"w": torch.ones(2)}, state, params)
    with pytest.raises(
        HyperparameterError, match=r"`mask` is called with the tree of all parameters, and failed: Attr"
    ):
        front.lamb(0.1, mask=lambda name: not name.endswith("bias")).init(params)
    with pytest.raises(HyperparameterError, match=r"`learning_rate` is called with the step, which this function does"):
        front.lamb(lambda: 0.1)
