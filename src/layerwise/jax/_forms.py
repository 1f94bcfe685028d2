"""Conversion of parts of a state from one storage format to another."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from layerwise.jax._bits import rounded
from layerwise.jax._storage import Grouped, MasterState
from layerwise.jax._trees import Leaves, of_state
from layerwise.jax._unread import stored
from layerwise.storage import Format


def inner(state: Any) -> Any:
    return state.inner if isinstance(state, MasterState) else state


def held(state: Any, leaves: Leaves) -> list[Any]:
    """Return the companions of each parameter's weights in a state."""
    is_held = isinstance(state, MasterState)
    return of_state(leaves, "weights", state.weights) if is_held else [None] * len(leaves.arrays)


def is_grouped(x: Any) -> bool:
    return isinstance(x, Grouped)


def numbers(x: Any, signed: bool) -> Any:
    return stored(jnp.asarray(x.codes), Format(jnp.asarray(x.scale), None, signed)).read() if is_grouped(x) else x


def in_groups(numbers: Any, like: Grouped, signed: bool) -> Grouped:
    codes, scale = stored(like.codes, Format(like.scale, None, signed)).encode(jnp.asarray(numbers, jnp.float32), 0)
    return Grouped(codes.astype(like.codes.dtype), scale)


def weights_as(p: Any, wanted: Any, held: Any) -> Any:
    """Return the companions of weights in the wanted form."""
    if wanted is None or held is None:
        return wanted
    held = jnp.asarray(held)
    if held.dtype == wanted.dtype:
        return placed(held, wanted)
    full = held if jnp.issubdtype(held.dtype, jnp.floating) else stored(p, Format(held)).read()
    if jnp.issubdtype(wanted.dtype, jnp.floating):
        return placed(full, wanted)
    # A master that lies half-way between two weights belongs to the other one: to this, one part less is lacking.
    other, rest = stored(p, Format(wanted)).encode(full, 0)
    same = other == p.astype(other.dtype)
    return placed(jnp.where(same, rounded(rest, wanted.dtype), jnp.iinfo(wanted.dtype).max), wanted)


def shape(x: Any) -> Any:
    return None if x is None else tuple(np.shape(x.codes if is_grouped(x) else x))


def in_form(given: Any, like: Any, signed: bool) -> Any:
    """Return an array, or codes with their scales, in the form of `like`."""
    if not is_grouped(like):
        return placed(numbers(given, signed), like)
    given = given if is_grouped(given) else in_groups(given, like, signed)
    return Grouped(*(placed(one, other) for one, other in zip(given, like, strict=True)))


def placed(given: Any, like: Any) -> Any:
    return jax.device_put(jnp.asarray(given, like.dtype), like.sharding)
