"""What the tests of the JAX front share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from cases import CASES, Case

import layerwise.jax as front

FRONTS = {"Lamb": front.lamb, "Lars": front.lars, "Adafactor": front.adafactor}
NAMES = list(FRONTS)
BY_NAME = {case.name: case for case in CASES}
# A setting of each that uses everything it keeps.
BUSY: dict[str, dict[str, Any]] = {
    "Lamb": {"learning_rate": 0.1, "weight_decay": 0.1},
    "Lars": {"learning_rate": 0.1, "weight_decay": 0.1, "trust_coefficient": 0.5},
    "Adafactor": {"learning_rate": 0.1, "momentum": 0.9, "weight_decay_rate": 0.01, "min_dim_size_to_factor": 0},
}
DECAY_MASK = {"Lamb": "mask", "Lars": "weight_decay_mask", "Adafactor": "weight_decay_mask"}
SHAPES = {"w": (5, 4), "b": (4,), "s": (), "deep": {"k": (4, 2, 3), "zero": (3, 2)}}


def made(name: str, **options: Any) -> optax.GradientTransformationExtraArgs:
    """The optimizer in a busy setting."""
    return FRONTS[name](**{**BUSY[name], **options})


def arguments(case: Case, options: dict[str, Any]) -> dict[str, Any]:
    """The options of the formulas as the functions here call them."""
    given = dict(options)
    given["learning_rate"] = given.pop("lr")
    if case.name == "Lamb":
        given["b1"], given["b2"] = given.pop("betas")
    if case.name == "Adafactor":
        given["decay_rate"] = -given.pop("beta2_decay")
        given["dtype_momentum"] = given.pop("momentum_dtype")
        for ours, here in (
            ("scale_parameter", "multiply_by_parameter_scale"),
            ("clip_threshold", "clipping_threshold"),
            ("beta1", "momentum"),
            ("weight_decay", "weight_decay_rate"),
        ):
            given[here] = given.pop(ours)
    return given


def is_shape(x: Any) -> bool:
    return isinstance(x, tuple)


def tree(seed: int, shapes: Any = SHAPES, dtype: str = "float32", size: float = 1.0) -> Any:
    """A tree of numbers; what is called zero is zero in the first of seeds."""
    draw = np.random.default_rng(seed)
    return jax.tree.map(lambda s: jnp.asarray(size * draw.normal(size=s), dtype), shapes, is_leaf=is_shape)


def run(opt: Any, params: Any, grads: Any, jit: bool = True) -> tuple[Any, Any]:
    """Parameters and state after a step on each of the gradients."""
    state, update = opt.init(params), jax.jit(opt.update) if jit else opt.update
    for g in grads:
        updates, state = update(g, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def gradients(steps: int, shapes: Any = SHAPES, dtype: str = "float32") -> list[Any]:
    return [tree(100 + i, shapes, dtype) for i in range(steps)]


def close(ours: Any, theirs: Any, tolerance: float = 1e-6) -> None:
    """Equal to `tolerance` of the largest number of each leaf, or of 1."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    paths, _ = jax.tree_util.tree_flatten_with_path(ours)
    for (path, a), b in zip(paths, jax.tree.leaves(theirs), strict=True):
        wanted = np.asarray(b, np.complex128)
        scale = max(1.0, float(np.max(np.abs(wanted), initial=0.0)))
        np.testing.assert_allclose(
            np.asarray(a, np.complex128), wanted, rtol=0, atol=tolerance * scale, err_msg=str(path)
        )


def same(ours: Any, theirs: Any) -> None:
    """Equal bit for bit."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
