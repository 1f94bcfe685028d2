"""Trees of parameters: their leaves by name, and values for them from a tree, a prefix of it, or a callable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from layerwise.errors import GradientError, HyperparameterError, ParameterError, StateError, class_in_words, shown
from layerwise.jax._storage import Grouped
from layerwise.jax._types import Array, Tree
from layerwise.options.checks import FLAG

Check = Callable[[str, Any], Any]
CALL = "Call update(gradients, state, params)."


class Leaves(NamedTuple):
    """The parameters of a tree. None, masked nodes and integers are not parameters; a state has None in their
    places.
    """

    names: list[str]
    arrays: list[Array]
    tree: Tree
    given: Tree  # the tree with its integers
    still: list[Array]  # for each leaf of `given` None, or an integer array, which no step moves

    def like(self, leaves: Sequence[Array]) -> Tree:
        """Return a tree with the structure of the parameters."""
        return jax.tree.unflatten(self.tree, leaves)

    def part_of_state(self, values: Sequence[object]) -> Tree:
        """Return a part of the state: a tree of arrays, or `Grouped` with two if some of the values are in 8 bits."""
        if not any(isinstance(x, Grouped) for x in values):
            return self.like(values)
        both = [x if isinstance(x, Grouped) else Grouped(x, None) for x in values]
        return Grouped(*map(self.like, zip(*both, strict=True)))

    def by_measurement(self, measured: Sequence[dict[str, Array]]) -> dict[str, Tree]:
        """Return the measurements as one tree for each measurement."""
        names = dict.fromkeys(name for one in measured for name in one)
        return {name: self.like([one.get(name) for one in measured]) for name in names}

    def of_all(self, leaves: Sequence[Array]) -> Tree:
        """Return the updates of every leaf, with zeros for integers."""
        each = iter(leaves)
        return jax.tree.unflatten(self.given, [next(each) if x is None else jnp.zeros_like(x) for x in self.still])

    def moving(self, found: Sequence[object]) -> list[Array]:
        """Return the values for the parameters, out of values for every leaf."""
        return [one for one, x in zip(found, self.still, strict=True) if x is None]


def parameters(params: Tree) -> Leaves:
    """Return the parameters, each a floating-point or complex array with a name for messages."""
    paths, given = jax.tree_util.tree_flatten_with_path(params)
    found = [(name := name_of(path), _array(name, leaf)) for path, leaf in paths]
    still = [leaf if _is_integer(leaf) else None for _, leaf in found]
    arrays = [_parameter(name, leaf) if x is None else None for (name, leaf), x in zip(found, still, strict=True)]
    tree = jax.tree.structure(jax.tree.unflatten(given, arrays))
    names = [name for (name, _), x in zip(found, still, strict=True) if x is None]
    return Leaves(names, [p for p in arrays if p is not None], tree, given, still)


def _array(name: str, leaf: Array, error: type[Exception] = ParameterError) -> Array:
    """Return a leaf as a JAX array if it is a number or a NumPy array, whose float64 JAX may narrow."""
    try:
        _is_integer(leaf)
    except TypeError:  # its dtype is of another library
        raise error(f"{name} must be an array of JAX or NumPy, but is {class_in_words(leaf)}. Convert it.") from None
    of_numbers = isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "fc"
    return jnp.asarray(leaf) if of_numbers or isinstance(leaf, (bool, int, float, complex)) else leaf


def _is_integer(leaf: Array) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and (jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_))


def _parameter(name: str, leaf: Array) -> Array:
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or not hasattr(leaf, "shape"):
        raise ParameterError(f"{name} must be an array, but is {shown(leaf)}. Mask it, or remove it from the tree.")
    if not jnp.issubdtype(dtype, jnp.inexact) or jnp.finfo(dtype).bits < 16:
        raise ParameterError(
            f"{name} must have a floating-point dtype of 16 to 64 bits or be complex, but has {dtype}. Leave it out "
            "with optax.masked or optax.partition, or set it to None in the tree."
        )
    return leaf


def gradients(leaves: Leaves, updates: Tree) -> list[Array]:
    """Return the gradient of each parameter, or None."""
    try:
        found = leaves.moving(leaves.given.flatten_up_to(updates))
    except ValueError:
        what = _difference(jax.tree.unflatten(leaves.given, range(leaves.given.num_leaves)), updates)
        raise GradientError(f"the gradients must be a tree like the parameters, but {what}. {CALL}") from None
    return [
        _gradient(name, p, _array(f"the gradient of {name}", g, GradientError))
        for name, p, g in zip(leaves.names, leaves.arrays, found, strict=True)
    ]


def _gradient(name: str, p: Array, g: Array) -> Array:
    if g is None:
        return None
    if not hasattr(g, "dtype") or not hasattr(g, "shape") or not jnp.issubdtype(g.dtype, jnp.inexact):
        raise GradientError(f"the gradient of {name} must be a floating-point array, but is {shown(g)}.")
    if g.shape != p.shape:
        raise GradientError(f"the gradient of {name} has the shape {g.shape}, but its parameter has {p.shape}.")
    if jnp.iscomplexobj(g) and not jnp.iscomplexobj(p):
        raise GradientError(f"the gradient of {name} is complex, but its parameter is not. Pass its real part.")
    return g


def of_state(leaves: Leaves, part: str, tree: Tree) -> list[Array]:
    """Return one part of the state for each parameter."""
    if tree is None:
        return [None] * len(leaves.arrays)
    if isinstance(tree, Grouped):
        codes, scales = (
            of_state(leaves, f"{of} of {part}", one) for of, one in zip(("codes", "scales"), tree, strict=True)
        )
        return [x if scale is None else Grouped(x, scale) for x, scale in zip(codes, scales, strict=True)]
    try:
        found: list[Array] = leaves.tree.flatten_up_to(tree)
    except ValueError:
        try:
            found = leaves.moving(leaves.given.flatten_up_to(tree))  # optax keeps state for integers, too
        except ValueError:
            what = _difference(leaves.like(leaves.names), tree)
            raise StateError(
                f"{part} must be a tree like the parameters, but {what}. Create the state with init."
            ) from None
    return [_array(part, one, StateError) for one in found]


def measurements_by_parameter(leaves: Leaves, trees: dict[str, Tree]) -> list[dict[str, Array]]:
    """Return the measurements of each parameter."""
    columns = {name: of_state(leaves, f"{name} of stats", tree) for name, tree in trees.items()}
    return [{name: column[i] for name, column in columns.items()} for i in range(len(leaves.arrays))]


def by_leaf(argument: str, given: Tree, params: Tree, leaves: Leaves, check: Check) -> list[Array]:
    """Return the value for each leaf from a tree, a prefix of the parameters' tree, or a callable that returns one."""
    with jax.ensure_compile_time_eval():  # a value computed from shapes is known, if jax.numpy computed it
        tree = _called(argument, given, params) if _is_function(given) else given

    def spread(one: Tree, under: Tree) -> Tree:
        value = check(argument, one) if jax.tree.leaves(under) else None
        return jax.tree.map(lambda _: value, under)

    try:
        found = jax.tree.map(spread, tree, params, is_leaf=_is_end)
        return leaves.moving(leaves.given.flatten_up_to(found))
    except HyperparameterError:
        raise
    except (ValueError, TypeError, AttributeError):
        allowed = "a tree like the parameters, a prefix of such a tree, or a callable of them"
        what = _difference(params, tree, is_end=_is_end)
        raise HyperparameterError(f"`{argument}` must be {allowed}, but {what}.") from None


def _called(argument: str, function: Any, params: Tree) -> Tree:
    try:
        return function(params)
    except Exception as problem:
        raise HyperparameterError(
            f"`{argument}` is called with the tree of all parameters, and failed: {type(problem).__name__}: {problem}. "
            "For a function of names, pass lambda params: jax.tree_util.tree_map_with_path(…, params)."
        ) from problem


def _is_function(given: object) -> bool:
    return callable(given) and jax.tree_util.all_leaves([given])  # a module is both callable and a tree


def _is_end(x: Tree) -> bool:
    return x is None or isinstance(x, jax.sharding.PartitionSpec)


def _difference(wanted: Tree, found: Tree, where: str = "", is_end: Callable[[Tree], bool] | None = None) -> str:
    """Return the first place where a tree differs from the parameters' tree, or from a prefix of it."""
    return next(_differences(wanted, found, where, is_end), "its nodes differ in data other than arrays")


def _differences(wanted: Tree, found: Tree, where: str, is_end: Callable[[Tree], bool] | None) -> Iterator[str]:
    if _is_leaf(wanted) or (is_end and (is_end(found) or _is_leaf(found))):
        return
    if type(found) is not type(wanted):
        kinds = (f"a {type(one).__name__}" for one in (found, wanted))
        yield f"{f'`{where}`' if where else 'it'} is {next(kinds)} instead of {next(kinds)}"
        return
    theirs, ours = _children(found, where), _children(wanted, where)
    yield from (f"`{name}` is missing" for name in ours if name not in theirs)
    yield from (f"`{name}` is not among them" for name in theirs if name not in ours)
    for name, one in ours.items():
        yield from _differences(one, theirs[name], name, is_end)


def _is_leaf(x: Tree) -> bool:
    return jax.tree_util.all_leaves([x])


def _children(tree: Tree, where: str) -> dict[str, Tree]:
    paths, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    return {"/".join(filter(None, (where, name_of(path)))): one for path, one in paths}


def flag(argument: str, value: object) -> bool:
    """Return a leaf of a mask; raise if it is not a bool."""
    return bool(FLAG(argument, value, "A mask consists of True and False, known before the step."))


def name_of(path: tuple[object, ...]) -> str:
    """Return the name of a leaf, such as "dense/kernel"."""
    return jax.tree_util.keystr(path, simple=True, separator="/") or "the parameter"
