"""What a step measured: there for who asked, and costing nothing for who did not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_front.front import BY_NAME, FRONTS, LITTLE, NAMES, arguments, gradients, made, mainly, run, tree

from layerwise import jax as front

pytestmark = pytest.mark.thinned(1, 2)

each = pytest.mark.parametrize("name", NAMES)


@mainly("Lars")
def test_inside_other_transformations(name):
    chained = optax.chain(
        optax.clip(1.0), optax.masked(made(name, stats=True), {"w": True, "b": False, "s": False, "deep": True})
    )
    _, state = run(chained, tree(0), gradients(1))
    assert sorted(front.stats(state)) == ["deep/k", "deep/zero", "w"]


@mainly("Adafactor")
def test_before_the_first_step_they_are_zero_and_of_the_form_they_will_have(name):
    opt, params = made(name, stats=True, blocks={"w": "each", "b": 2, "s": None, "deep": None}), tree(0)
    before = opt.init(params)
    _, after = jax.jit(opt.update)(tree(1), before, params)
    assert jax.tree.map(jnp.shape, before) == jax.tree.map(jnp.shape, after)
    assert jax.tree.map(lambda x: x.dtype, before) == jax.tree.map(lambda x: x.dtype, after)
    assert not any(np.any(x) for x in jax.tree.leaves(before.stats))
    assert front.stats(after)["w"]["trust_ratio"].shape == (5,)


@mainly("Adafactor")
def test_requesting_stats_does_not_change_steps(name):
    case = BY_NAME[name]
    options = arguments(case, case.usual())
    (ours, _), (plain, _) = (
        run(FRONTS[name](**options, stats=asked), tree(0, LITTLE), gradients(2, LITTLE)) for asked in (True, False)
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
