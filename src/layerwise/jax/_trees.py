"""Trees of parameters: their leaves by name, and what is said of them by a tree, a prefix of it, or a callable."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from layerwise.checks import Refused, plain
from layerwise.errors import GradientError, HyperparameterError, ParameterError, StateError, sentence

Check = Callable[[str, Any], Any]


class Leaves(NamedTuple):
    """The arrays of a tree; None and masked nodes are no arrays."""

    names: list[str]
    arrays: list[Any]
    tree: Any

    def like(self, leaves: Sequence[Any]) -> Any:
        """A tree of this form."""
        return jax.tree.unflatten(self.tree, leaves)


def parameters(params: Any) -> Leaves:
    """The parameters, each an array with a name to speak of it by; those that `is_stepped` are floating or complex."""
    paths, tree = jax.tree_util.tree_flatten_with_path(params)
    names = [name_of(path) for path, _ in paths]
    arrays = [_parameter(name, leaf) for name, (_, leaf) in zip(names, paths, strict=True)]
    return Leaves(names, arrays, tree)


def is_stepped(leaf: Any) -> bool:
    """Whether an optimizer moves it: integers, such as counts, stay what they are."""
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def _parameter(name: str, leaf: Any) -> Any:
    if isinstance(leaf, (bool, int, float, complex)):
        leaf = jnp.asarray(leaf)
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or not hasattr(leaf, "shape"):
        raise ParameterError(f"{name} must be an array, but is {leaf!r}. Mask it, or take it out of the tree.")
    if jnp.issubdtype(dtype, jnp.integer) or dtype == jnp.bool_:
        return leaf
    if isinstance(leaf, np.ndarray) and jax.dtypes.canonicalize_dtype(dtype) != dtype:
        _warn_of_x64(str(dtype))
    if not jnp.issubdtype(dtype, jnp.inexact) or jnp.finfo(dtype).bits < 16:
        raise ParameterError(
            f"{name} must be floating point of 16 to 64 bits or complex, but is {dtype}. Leave it out with "
            "optax.masked or optax.partition, or as None in the tree."
        )
    return leaf


@cache
def _warn_of_x64(dtype: str) -> None:
    """Say once that JAX rounds such numbers."""
    warnings.warn(
        f"parameters are {dtype}, which JAX rounds to 32 bits. Call jax.config.update('jax_enable_x64', True) to keep "
        "it, or make them float32.",
        stacklevel=2,
    )


def gradients(leaves: Leaves, updates: Any) -> list[Any]:
    """The gradient of each parameter; None where there is none, or where it is not stepped."""
    try:
        found = leaves.tree.flatten_up_to(updates)
    except ValueError as problem:
        raise GradientError(f"the gradients are no tree like the parameters: {problem}") from None
    return [_gradient(name, p, g) for name, p, g in zip(leaves.names, leaves.arrays, found, strict=True)]


def _gradient(name: str, p: Any, g: Any) -> Any:
    if g is None or not is_stepped(p):
        return None
    if isinstance(g, (bool, int, float, complex)):
        g = jnp.asarray(g)
    if not hasattr(g, "dtype") or not hasattr(g, "shape") or not jnp.issubdtype(g.dtype, jnp.inexact):
        raise GradientError(f"the gradient of {name} must be a floating array, but is {g!r}.")
    if g.shape != p.shape:
        raise GradientError(f"the gradient of {name} has the shape {g.shape}, its parameter {p.shape}.")
    if jnp.iscomplexobj(g) and not jnp.iscomplexobj(p):
        raise GradientError(f"the gradient of {name} is complex, its parameter is not. Pass its real part.")
    return g


def of_state(leaves: Leaves, part: str, tree: Any) -> list[Any]:
    """What one part of the state holds for each parameter."""
    if tree is None:
        return [None] * len(leaves.arrays)
    try:
        found: list[Any] = leaves.tree.flatten_up_to(tree)
    except ValueError as problem:
        raise StateError(f"{part} is no tree like the parameters: {problem}. Make the state with init.") from None
    return found


def said(argument: str, given: Any, params: Any, leaves: Leaves, check: Check) -> list[Any]:
    """What a tree, a prefix of the parameters' tree, or a callable that returns one, says of each leaf."""
    tree = given(params) if _is_function(given) else given

    def spread(one: Any, under: Any) -> Any:
        value = check(argument, one) if jax.tree.leaves(under) else None
        return jax.tree.map(lambda _: _Said(value), under)

    try:
        found = jax.tree.map(spread, tree, params, is_leaf=_is_end)
        return [one.value for one in leaves.tree.flatten_up_to(found)]
    except HyperparameterError:
        raise
    except (ValueError, TypeError, AttributeError) as problem:
        raise HyperparameterError(
            f"`{argument}` must be a tree like the parameters, a prefix of it, or a callable of them: {problem}"
        ) from None


class _Said:
    """Keeps a value that may be None or a tuple from being taken for a tree."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _is_function(given: Any) -> bool:
    return callable(given) and jax.tree_util.all_leaves([given])  # a module is callable too, and a tree


def _is_end(x: Any) -> bool:
    return x is None or isinstance(x, jax.sharding.PartitionSpec)


def flag(argument: str, value: Any) -> bool:
    """A leaf of a mask."""
    try:
        if isinstance(found := plain(value), bool):
            return found
    except Refused:  # being traced
        pass
    raise HyperparameterError(sentence(argument, "made of True and False", value, "Masks are known before the step."))


def name_of(path: Any) -> str:
    """The name of a leaf, such as "dense/kernel"."""
    return jax.tree_util.keystr(path, simple=True, separator="/") or "the parameter"
