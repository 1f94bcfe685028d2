"""States put together from parts, each in the storage format and place that is wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from layerwise.catalog.registry import ENTRIES
from layerwise.errors import StateError
from layerwise.jax import optimizers
from layerwise.jax._bits import rounded
from layerwise.jax._storage import Grouped, MasterState, formatted_array, numbers
from layerwise.jax._trees import Leaves, of_state
from layerwise.jax._types import Array, Tree
from layerwise.rules.requests import Shape

if TYPE_CHECKING:
    import optax


def in_numbers(state: Tree, leaves: Leaves) -> Tree:
    """Return a state with numbers instead of groups of 8 bits."""
    trees = {part: getattr(state, part) for part in state_field_names(state).values()}
    grouped = {part: of_state(leaves, part, tree) for part, tree in trees.items() if isinstance(tree, Grouped)}
    return state._replace(**{part: leaves.like([*map(numbers, each)]) for part, each in grouped.items()})


def _shape(x: Array) -> Shape | None:
    return None if x is None else tuple(np.shape(x.codes if isinstance(x, Grouped) else x))


def _placed(given: Tree, like: Tree) -> Tree:
    return jax.device_put(jnp.asarray(given, like.dtype), like.sharding)


def _in_form(given: Array, like: Array) -> Array:
    """Return an array, or codes with their scales, in the format of `like`."""
    if not isinstance(like, Grouped):
        return _placed(numbers(given), like)
    if not isinstance(given, Grouped) or given.codes.dtype != like.codes.dtype:
        given = Grouped(*formatted_array(like.codes, like.unit).encode(jnp.asarray(numbers(given), jnp.float32), 0))
    return Grouped(*map(_placed, given, like))


def _weights_in_form(p: Array, wanted: Array, held: Array) -> Array:
    """Return the companions of weights in the wanted format."""
    if wanted is None or held is None:
        return wanted
    held = jnp.asarray(held)
    if held.dtype == wanted.dtype:
        return _placed(held, wanted)
    full = held if jnp.issubdtype(held.dtype, jnp.floating) else formatted_array(p, held).read()
    if jnp.issubdtype(wanted.dtype, jnp.floating):
        return _placed(full, wanted)
    # A master half-way between two weights belongs to the other one; subtracting one part makes it belong to this one.
    other, rest = formatted_array(p, wanted).encode(full, 0)
    same = other == p.astype(other.dtype)
    return _placed(jnp.where(same, rounded(rest, wanted.dtype), jnp.iinfo(wanted.dtype).max), wanted)


# ---- fields of a state


def own_of(state: Tree) -> Tree:
    return state.inner if isinstance(state, MasterState) else state


def companions_of(state: Tree, leaves: Leaves) -> list[Array]:
    """Return the companions of each parameter's weights in a state."""
    return of_state(leaves, "weights", state.weights if isinstance(state, MasterState) else None)


def initial_state(transform: optax.GradientTransformation, params: Tree) -> Tree:
    """Return the initial state, which shows the wanted format."""
    whole = transform.init(params)
    if type(own_of(whole)) not in RULES:
        found = type(own_of(whole)).__name__
        raise StateError(f"the optimizer must be one of layerwise.jax, but its state is a {found}.")
    return whole


RULES = {getattr(optimizers, f"{name}State"): entry.rule for name, entry in ENTRIES.items()}


def state_field_names(state: Tree) -> dict[str, str]:
    """Return the fields of the state: their names in the PyTorch API and in the rules, and their names here."""
    if type(state) not in RULES:
        raise StateError(
            f"the state must be one of layerwise.jax, but is a {type(state).__name__}. Use from_optax first."
        )
    return dict(zip(RULES[type(state)].State._fields, state._fields[1:-1], strict=True))


def state_with_trees(
    whole: object, leaves: Leaves, count: Array, trees: Mapping[str, object], held: Sequence[Array]
) -> Tree:
    """Return our state with these trees: each array with the required shape, dtype and place, and with the companions
    of weights, converted from another state.
    """
    ours, filled = own_of(whole), {}
    for part, given in trees.items():
        if (wanted := getattr(ours, part)) is not None:
            each = zip(leaves.names, of_state(leaves, part, wanted), of_state(leaves, part, given), strict=True)
            filled[part] = leaves.part_of_state([_fitted(f"{part} of {name}", *pair) for name, *pair in each])
    made = ours._replace(count=jnp.asarray(count, jnp.int32), **filled)
    if not isinstance(whole, MasterState):
        return made
    rows = zip(leaves.arrays, companions_of(whole, leaves), held, strict=True)
    return MasterState(made, leaves.like([_weights_in_form(*row) for row in rows]))


def _fitted(what: str, ours: Array, theirs: Array) -> Array:
    shape, has = _shape(ours), _shape(theirs)
    if shape is None:
        return None
    if has != shape:
        raise StateError(
            f"{what} must have the shape {shape}, but has {has or 'none'}. Use the same options as in init."
        )
    return _in_form(theirs, ours)


def like_theirs(theirs: Tree, ours: Tree) -> Tree:
    if ours is not None and _shape(ours) != _shape(theirs):
        raise StateError(
            f"the optax state needs the shape {_shape(theirs)}, but the layerwise state has {_shape(ours)}."
        )
    return theirs if ours is None else _placed(ours, theirs)
