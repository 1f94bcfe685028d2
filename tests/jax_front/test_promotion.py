"""Where JAX promotes no dtype by itself, and with its other switches for careful users: all goes as without them."""

from __future__ import annotations

from contextlib import ExitStack

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_front.front import FRONTS, NAMES, made, mainly, tree

from layerwise.schedules import Polynomial

pytestmark = pytest.mark.thinned(1, 4)
SHAPES = {"w": (64, 80), "b": (80,)}
FORMATS = {
    "float32": {},
    "8 bits": {"state_dtype": "int8", "rounding": "stochastic"},
    "masters": {"master_weights": True},
    "split": {"master_weights": "split24", "state_dtype": "bfloat16"},
}


def steps(opt, dtype, count=2):
    """Weights after steps, which are added as is written on the page, since optax's function needs promotion."""
    params = tree(0, SHAPES, dtype)
    state = opt.init(params)
    for i in range(count):
        updates, state = jax.jit(opt.update)(tree(1 + i, SHAPES, dtype), state, params)
        params = jax.tree.map(lambda p, u: (p.astype(u.dtype) + u).astype(p.dtype), params, updates)
    return params


def careful(stack):
    for switch in (jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"), jax.debug_nans(True)):
        stack.enter_context(switch)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", FORMATS)
def test_no_step_needs_promotion(name, dtype, form):
    options = {"max_grad_norm": 1.0} if name in ("Lamb", "Lars") else {}
    wanted = steps(made(name, **options, **FORMATS[form]), dtype)
    with ExitStack() as stack:
        careful(stack)
        found = steps(made(name, **options, **FORMATS[form]), dtype)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


SCHEDULES = {
    "cosine": optax.cosine_decay_schedule(0.1, 10),
    "linear": optax.linear_schedule(0.1, 0.0, 10),
    "warm-up": optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10),
    "pieces": optax.piecewise_constant_schedule(0.1, {1: 0.5}),
    "of jax.numpy": lambda count: jnp.where(count < 1, 0.1, 0.05),
    "of this library": Polynomial(0.1, 10, 2),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@mainly("Lamb", ["Lamb", "Adafactor"])
@pytest.mark.thinned(6, 12)
def test_no_schedule_needs_promotion(name, schedule):
    with jax.numpy_dtype_promotion("strict"):
        found = steps(FRONTS[name](SCHEDULES[schedule]), "float32")
    wanted = steps(FRONTS[name](SCHEDULES[schedule]), "float32")
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
