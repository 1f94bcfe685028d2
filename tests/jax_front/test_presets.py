"""Presets by the names that the functions here have."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax_front.front import BY_NAME, FRONTS, close, run

from layerwise import preset as shared
from layerwise import presets
from layerwise.jax import like, preset

pytestmark = pytest.mark.thinned(1, 2)

NEEDS_RATE = {"optax.adafactor", "t5x.Adafactor", "big_vision.scale_by_adafactor", "timm.AdafactorBigVision"}


# Of those of an optimizer the first is tried by `make test`.
FIRST = {one.optimizer: one.name for one in reversed(presets())}


@pytest.mark.parametrize(
    "one",
    [pytest.param(one, id=one.name, marks=() if one.name in FIRST.values() else pytest.mark.slow) for one in presets()],
)
def test_the_numbers_of_the_numpy_front(one, jax64):
    """The same preset takes the same steps here and there."""
    case, draw = BY_NAME[one.optimizer], np.random.default_rng(0)
    rate = {"lr": 0.1} if one.optimizer != "Adafactor" or one.name in NEEDS_RATE else {}
    here = {"learning_rate": 0.1} if rate else {}
    opt = like(one.name, **here)
    params = {"w": jnp.asarray(draw.normal(size=(4, 3))), "b": jnp.zeros(3)}
    grads = [{key: jnp.asarray(draw.normal(size=p.shape)) for key, p in params.items()} for _ in range(2)]
    there = case.numpy(**{**rate, **shared(one.name)})
    weights = {key: np.array(p) for key, p in params.items()}
    for g in grads:
        there.step_all(weights, {key: np.asarray(x) for key, x in g.items()})
    close(run(opt, params, grads, jit=False)[0], weights, 1e-12)


def test_options_override_a_preset_and_leave_it_unchanged():
    preset("timm.Lamb")["weight_decay"] = 1.0
    assert preset("timm.Lamb")["weight_decay"] == 0.01
    given = {"learning_rate": 0.1, "weight_decay": 0.5}
    params = {"w": jnp.ones((3, 2))}
    wanted, _ = run(FRONTS["Lamb"](**{**preset("timm.Lamb"), **given}), params, [params])
    for opt in (like("timm.Lamb", **given), FRONTS["Lamb"](**preset("timm.Lamb", **given))):
        close(run(opt, params, [params])[0], wanted, 0)
