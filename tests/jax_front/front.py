"""What the tests of the JAX front share."""

from __future__ import annotations

import inspect
from functools import cache, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import CASES, Case

import layerwise.jax as front
from layerwise.jax import _drive
from layerwise.options.names import OPTAX, optax_defaults

FRONTS = {case.name: getattr(front, case.name.lower()) for case in CASES}
NAMES = list(FRONTS)
BY_NAME = {case.name: case for case in CASES}
SHAPES = {"w": (5, 4), "b": (4,), "s": (), "deep": {"k": (4, 2, 3), "zero": (3, 2)}}
LITTLE = {"w": (5, 4), "b": (4,)}  # where forms of leaves are not what a test is about: it compiles in half the time


def made(name: str, **options: Any) -> optax.GradientTransformationExtraArgs:
    """The optimizer in a busy setting."""
    try:
        # Types belong to the key because 1 == True.
        given = tuple((key, type(value), value) for key, value in sorted(options.items()))
        return _made(name, given, _drive.LARGE)
    except TypeError:  # options that have no hash
        return FRONTS[name](**{**BUSY[name], **options})


@cache
def _made(name: str, options: tuple[tuple[str, type, Any], ...], large: int) -> optax.GradientTransformationExtraArgs:
    """The same object each time, so that JAX compiles its step once for all tests. What they patch is in the key."""
    return FRONTS[name](**{**BUSY[name], **{key: value for key, _, value in options}})


def arguments(case: Case, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the formulas as the functions here call them."""
    given = OPTAX.as_arguments(case.hyper, options)
    if "decay_rate" in given:
        given["decay_rate"] = -given["decay_rate"]
    return given


# Settings that use everything an optimizer keeps; what optax does otherwise by default is as in the other fronts.
BUSY = {case.name: arguments(case, {**optax_defaults(case.hyper), **case.busy}) for case in CASES}
DECAY_MASK = {
    name: next(one for one in ("mask", "weight_decay_mask") if one in inspect.signature(function).parameters)
    for name, function in FRONTS.items()
}
WITH_RATIO = [name for name, function in FRONTS.items() if "trust_ratio_mask" in inspect.signature(function).parameters]
THEIRS = {name: getattr(optax, name.lower()) for name in NAMES if hasattr(optax, name.lower())}


def mainly(*chosen: str, of: Any = tuple(NAMES)) -> Any:
    """Parametrize a test of what few rules have a part in: with these for every change, with all of them slow."""
    return pytest.mark.parametrize("name", [n if n in chosen else pytest.param(n, marks=pytest.mark.slow) for n in of])


def taken(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return those of the options that the optimizer takes."""
    known = inspect.signature(FRONTS[name]).parameters
    return {key: value for key, value in options.items() if key in known}


def is_shape(x: Any) -> bool:
    return isinstance(x, tuple)


def tree(seed: int, shapes: Any = SHAPES, dtype: str = "float32", size: float = 1.0) -> Any:
    """A tree of numbers; what is called zero is zero in the first of seeds."""
    draw = np.random.default_rng(seed)
    return jax.tree.map(lambda s: jnp.asarray(size * draw.normal(size=s), dtype), shapes, is_leaf=is_shape)


def run(opt: Any, params: Any, grads: Any, jit: bool = True) -> tuple[Any, Any]:
    """Parameters and state after a step on each of the gradients."""
    return goes_on(opt, params, opt.init(params), grads, jit)


def goes_on(opt: Any, params: Any, state: Any, grads: Any, jit: bool = True) -> tuple[Any, Any]:
    """The same from a state on."""
    step = _jitted(opt.update) if jit else _step_of(opt.update)
    for g in grads:
        params, state = step(g, state, params)
    return params, state


def _step_of(update: Any) -> Any:
    def step(g: Any, state: Any, params: Any) -> tuple[Any, Any]:
        updates, state = update(g, state, params)
        return optax.apply_updates(params, updates), state

    return step


@lru_cache(200)
def _jitted(update: Any) -> Any:
    return jax.jit(_step_of(jax.jit(update)))


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
