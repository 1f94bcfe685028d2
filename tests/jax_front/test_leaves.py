"""What the leaves of parameters, masks and rates may be."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from jax_front.front import NAMES, made

import layerwise.jax as front
from layerwise.errors import HyperparameterError

pytestmark = pytest.mark.thinned(1, 2)

each = pytest.mark.parametrize("name", NAMES)


def test_a_traced_rate_leaves_the_arithmetic_in_the_dtype_of_the_parameter(jax64):
    params = {"w": jnp.ones((4, 3), "float32")}

    def update(rate):
        opt = made("Lars", learning_rate=rate)
        return opt.update(params, opt.init(params), params)

    def wide(of_rate, *rate):
        return str(jax.make_jaxpr(of_rate)(*rate)).count("f64[4,3]")

    assert wide(update, jnp.float64(0.1)) == wide(lambda: update(0.1))  # the squares that are summed


@each
def test_a_schedule_that_takes_no_step_is_refused(name):
    with pytest.raises(
        HyperparameterError, match=r"`learning_rate` is called with the step, which this function does not take"
    ):
        made(name, learning_rate=lambda: 0.1)


@pytest.mark.parametrize("given", [jnp.bfloat16, "bfloat16", ml_dtypes.bfloat16, np.dtype("bfloat16"), torch.bfloat16])
def test_the_momentum_takes_dtypes_of_any_library(given):
    params = {"w": jnp.ones((3, 2))}
    assert front.adafactor(0.1, momentum=0.9, dtype_momentum=given).init(params).ema["w"].dtype == jnp.bfloat16


def test_the_dtype_of_a_momentum_that_is_off_is_taken_as_optax_does():
    params = {"w": jnp.ones((3, 2))}
    alike = (front.sgd(0.1, accumulator_dtype=given).init(params) for given in (None, "bfloat16"))
    assert jax.tree.structure(next(alike)) == jax.tree.structure(next(alike))


@pytest.mark.parametrize(
    ("make", "says", "never"),
    [
        (
            lambda: front.lamb(0.1, b1=1.5),
            "`b1` must be a number in [0, 1), but is 1.5. Pass a number such as b1",
            "betas",
        ),
        (lambda: front.lamb(0.1, b2="x"), "`b2` must be a number in [0, 1), but is 'x'.", "betas"),
        (lambda: front.lamb(-1), "Pass a number such as learning_rate=1e-3", " lr"),
        (lambda: front.adafactor(0.1, eps=0), "`eps` must be a finite number > 0 or None, but is 0.", "pair"),
        (lambda: front.adafactor(0.1, weight_decay_rate=-1), "such as weight_decay_rate=0.01", "weight_decay="),
        (lambda: front.adafactor(warmup_init=True), "`warmup_init` must be False without a relative step", "is given"),
        (lambda: front.adafactor(0.1, momentum=2), "`momentum` must be", "beta1"),
    ],
)
def test_messages_name_what_was_given_and_what_there_is(make, says, never):
    with pytest.raises(HyperparameterError) as caught:
        make()
    assert says in str(caught.value)
    assert never not in str(caught.value)
