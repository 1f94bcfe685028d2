"""Conversion of parts of a state from one storage format to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from layerwise.jax._bits import rounded
from layerwise.jax._storage import Grouped, MasterState, Shape, stored
from layerwise.jax._trees import Leaves, of_state
from layerwise.storage.coded import coded_of
from layerwise.storage.weights import BESIDE


def inner(state: Any) -> Any:
    return state.inner if isinstance(state, MasterState) else state


def held(state: Any, leaves: Leaves) -> list[Any]:
    """Return the companions of each parameter's weights in a state."""
    is_held = isinstance(state, MasterState)
    return of_state(leaves, "weights", state.weights) if is_held else [None] * len(leaves.arrays)


def numbers(x: Any) -> Any:
    """Return a part of a state as numbers."""
    return stored(jnp.asarray(x.codes), jnp.asarray(x.scale)).read() if isinstance(x, Grouped) else x


def in_groups(numbers: Any, like: Grouped) -> Grouped:
    codes, scale = stored(like.codes, like.scale).encode(jnp.asarray(numbers, jnp.float32), 0)
    return Grouped(codes.astype(like.codes.dtype), scale)


def weights_as(p: Any, wanted: Any, held: Any) -> Any:
    """Return the companions of weights in the wanted form."""
    if wanted is None or held is None:
        return wanted
    held = jnp.asarray(held)
    if held.dtype == wanted.dtype:
        return placed(held, wanted)
    full = held if jnp.issubdtype(held.dtype, jnp.floating) else stored(p, held).read()
    if jnp.issubdtype(wanted.dtype, jnp.floating):
        return placed(full, wanted)
    # A master that lies half-way between two weights belongs to the other one: to this, one part less is lacking.
    other, rest = stored(p, wanted).encode(full, 0)
    same = other == p.astype(other.dtype)
    return placed(jnp.where(same, rounded(rest, wanted.dtype), jnp.iinfo(wanted.dtype).max), wanted)


def shape(x: Any) -> Any:
    return None if x is None else tuple(np.shape(x.codes if isinstance(x, Grouped) else x))


def in_form(given: Any, like: Any) -> Any:
    """Return an array, or codes with their scales, in the form of `like`."""
    if not isinstance(like, Grouped):
        return placed(numbers(given), like)
    if not isinstance(given, Grouped) or given.codes.dtype != like.codes.dtype:
        given = in_groups(numbers(given), like)
    return Grouped(*(placed(one, other) for one, other in zip(given, like, strict=True)))


def placed(given: Any, like: Any) -> Any:
    return jax.device_put(jnp.asarray(given, like.dtype), like.sharding)


def factored(shape: Shape, wanted: Sequence[Any], given: Sequence[Any], to_ours: bool) -> tuple[Any, ...]:
    """Return optax's v_row, v_col and v, which lack the dimension that a mean ran over, as ours, or ours as optax's."""
    if (wanted if to_ours else given)[0] is None:
        return (*wanted[:2], given[2])
    second, largest = map(int, np.argsort(shape)[-2:])  # optax's v_row is the mean over the latter
    order = slice(None) if largest > second else slice(None, None, -1)
    if to_ours:
        means = jnp.expand_dims(given[0], largest), jnp.expand_dims(given[1], second)
        return (*means[order], wanted[2])
    over_largest, over_second = given[:2][order]
    return jnp.squeeze(over_largest, largest), jnp.squeeze(over_second, second), wanted[2]


# ---- the arrays of checkpoints


def saved(part: str, x: Any) -> dict[str, Any]:
    """Return a part of a state as arrays by their names in checkpoints."""
    if not isinstance(x, Grouped):
        return {} if x is None else {part: np.asarray(x, np.float32)}
    codes, coded = np.asarray(x.codes), coded_of(x.codes.dtype.name)
    return {part: codes} if coded is None else {part: codes, part + coded.suffix: np.asarray(x.scale)}


def saved_weights(held: Any) -> dict[str, Any]:
    """Return the companions of weights by their name in checkpoints."""
    return {one.key: np.asarray(held) for one in BESIDE.values() if held is not None and held.dtype == one.dtype}
