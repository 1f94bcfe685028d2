"""Weights and state in few bytes under JAX: in the state's tree, through jit and wrappers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax_front.front import FRONTS, run, tree

from layerwise.errors import HyperparameterError, ParameterError, StateError
from layerwise.jax import Grouped, MasterState, adafactor, lamb, lars
from layerwise.jax._bits import BITS
from layerwise.storage import sixteen_bits as formats

SHAPES = {"w": (64, 80), "b": (7,)}
EVERYTHING = {"master_weights": "split24", "rounding": "stochastic", "state_dtype": "int8", "seed": 3}
slow = pytest.mark.slow


def start() -> Any:
    return tree(0, SHAPES, "bfloat16")


def grads(steps: int) -> Any:
    return [tree(10 + i, SHAPES, "bfloat16") for i in range(steps)]


def test_the_state_is_a_tree_of_codes_scales_and_remainders():
    state = lamb(0.1, **EVERYTHING).init(start())
    assert isinstance(state, MasterState)
    found = jax.tree.map(lambda x: (x.dtype.name, x.shape), state)
    small, scales = ("float32", (7,)), {"w": ("float32", (64, 2)), "b": None}  # b is a small tensor
    assert found.inner.mu == Grouped({"w": ("int8", (64, 80)), "b": small}, scales)
    assert found.inner.nu == Grouped({"w": ("uint8", (64, 80)), "b": small}, scales)
    assert found.weights == {"w": ("int8", (64, 80)), "b": ("int8", (7,))}
    assert optax.tree_utils.tree_get(state, "mu").codes["b"].shape == (7,)


def test_lamb_and_adafactor_have_few_bytes_for_each_weight():
    params = {"w": jnp.zeros((256, 1024), jnp.bfloat16)}
    momentum = {"momentum": 0.9, "master_weights": "split24", "state_dtype": "int8"}
    for opt, most in ((lamb(0.1, **EVERYTHING), 5.2), (adafactor(0.1, **momentum), 4.2)):
        size = sum(x.nbytes for x in jax.tree.leaves((params, opt.init(params))))
        assert size / params["w"].size < most


@pytest.mark.parametrize("kind", ["split24", pytest.param("split", marks=slow)])
def test_plain_apply_updates_leads_to_the_weights_that_are_meant(kind):
    """Steps as long as the weights, so that many change their sign or nearly vanish."""
    opt = lars(3e2, momentum=0.5, master_weights=kind)
    params, state = run(opt, start(), grads(3))
    for key, p in params.items():
        rest = state.weights[key]
        kept = 8 * rest.dtype.itemsize
        full = formats.join_bf16(BITS, BITS.as_floats(p), BITS.integers(rest), kept)
        again, lacking = formats.split_bf16(BITS, jnp.asarray(np.asarray(full)), kept)
        np.testing.assert_array_equal(again, np.asarray(p, np.float32))
        np.testing.assert_array_equal(np.asarray(lacking.array).astype(rest.dtype), rest)


def test_with_hyperparameters_injected_it_is_the_same():
    injected = optax.inject_hyperparams(lamb, static_args=("seed",), hyperparam_dtype=jnp.float32)(0.01, **EVERYTHING)
    ours, theirs = (run(opt, start(), grads(2))[0] for opt in (injected, lamb(0.01, **EVERYTHING)))
    np.testing.assert_array_equal(np.asarray(ours["w"]), np.asarray(theirs["w"]))


def test_random_bits_go_by_the_names_that_pytorch_has():
    nested, flat = ({"layer": start()}, {f"layer.{key}": x for key, x in start().items()})
    given = [({"layer": g}, {f"layer.{key}": x for key, x in g.items()}) for g in grads(2)]
    ours, theirs = (
        run(lamb(0.1, **EVERYTHING), *each)[0] for each in zip((nested, flat), zip(*given, strict=True), strict=True)
    )
    for key, p in ours["layer"].items():
        np.testing.assert_array_equal(np.asarray(p), np.asarray(theirs[f"layer.{key}"]))


def test_a_seed_that_is_traced_is_refused():
    injected = optax.inject_hyperparams(lamb, hyperparam_dtype=jnp.float32)
    opt = injected(0.01, rounding="stochastic", seed=3)
    with pytest.raises(HyperparameterError, match="static_args"):
        jax.eval_shape(opt.update, start(), opt.init(start()), start())
    plain = injected(0.01, rounding="stochastic")
    jax.eval_shape(plain.update, start(), plain.init(start()), start())


# ---- what is refused


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({}, lambda s: MasterState(s, None)),
        ({"master_weights": "split"}, lambda s: s.inner),
        ({"master_weights": "split"}, lambda s: s._replace(weights=jax.tree.map(jnp.float32, s.weights))),
        ({"state_dtype": "int8"}, lambda s: s._replace(mu=s.mu._replace(unit={"w": jnp.ones(3), "b": None}))),
        ({"state_dtype": "int8"}, lambda s: s._replace(mu=s.nu)),
    ],
    ids=["masters unasked", "no remainders", "masters for remainders", "other groups", "codes of no sign"],
)
def test_a_state_of_another_form_is_refused(options, wrong):
    opt = lamb(0.01, **options)
    with pytest.raises(StateError):
        jax.eval_shape(opt.update, start(), wrong(opt.init(start())), start())


def test_the_dtype_of_a_momentum_is_float32_by_default():
    adafactor(0.1, momentum=0.9, state_dtype="int8")
    with pytest.raises(HyperparameterError, match="as in dtype_momentum"):
        adafactor(0.1, momentum=0.9, dtype_momentum=jnp.bfloat16, state_dtype="int8")


def test_no_cut_goes_through_groups():
    mesh = Mesh(jax.devices()[:1], ("x",))
    opt = FRONTS["Lamb"](0.1, axis_name="x", specs=P(None, "x"), state_dtype="int8")
    step = jax.shard_map(opt.init, mesh=mesh, in_specs=P(None, "x"), out_specs=P(), check_vma=False)
    with pytest.raises(ParameterError, match="groups of 64"):
        jax.eval_shape(step, jnp.ones((64, 80)))


def test_more_elements_than_32_bits_count_are_not_rounded_at_random():
    params = {"w": jax.ShapeDtypeStruct((1 << 17, (1 << 15) + 1), jnp.bfloat16)}
    opt = lars(0.1, rounding="stochastic")
    with pytest.raises(ParameterError, match=r"2\^32"):
        jax.eval_shape(opt.update, params, jax.eval_shape(opt.init, params), params)
