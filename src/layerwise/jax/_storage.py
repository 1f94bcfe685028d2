"""The formats of weights and state under JAX, as the state's tree shows them, and the checks of its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from layerwise.errors import StateError, sentence, shown
from layerwise.jax._bits import BITS
from layerwise.jax._types import Array, Tree
from layerwise.storage import Format
from layerwise.storage.bits import Key
from layerwise.storage.coded import CODED, coded_of
from layerwise.storage.formatted_arrays import FormattedArray
from layerwise.storage.index import Index, index_of
from layerwise.storage.sixteen_bits import BESIDE
from layerwise.storage.state_dtypes import scales_of

Shape = tuple[int, ...]
LOW = (jnp.bfloat16, jnp.float16)
WAY_OUT = "Create the state with init, for the same parameters and options."


class Grouped(NamedTuple):
    """A part of a state in 8 bits: two trees like the parameters'.

    Attributes:
        codes: The codes of each parameter, in its shape; or plain numbers, if these are stored.
        unit: The scale of each group of 64 numbers of a row; None for plain numbers.
    """

    codes: Array
    unit: Array


class MasterState(NamedTuple):
    """The state of an optimizer with `master_weights`.

    Attributes:
        inner: The optimizer's own state.
        weights: A tree like the parameters': the remainder of each weight in int16 or int8, or its copy in float32;
            None for parameters that are not of 16 bits.
    """

    inner: Tree
    weights: Array


class Unread(NamedTuple):
    """A stored array, and the piece of it that a rule sees. Every run of the rule reads it, so none keeps numbers."""

    array: Grouped
    view: Callable[[Array], Array]


def unread(x: Array, view: Callable[[Array], Array]) -> Array:
    """Return a part of the state, or weights, as a rule's task takes them."""
    return Unread(x, view) if isinstance(x, Grouped) else None if x is None else view(x)


def weights_of(p: Array, held: Array) -> Array:
    """Return weights with all their stored precision: themselves, their copy, or combined with the remainder."""
    if held is None:
        return p
    return held if jnp.issubdtype(held.dtype, jnp.floating) else Grouped(p, held)


def numbers(x: Array) -> Array:
    """Return an array, or an array with its companion, as numbers."""
    return formatted_array(jnp.asarray(x.codes), jnp.asarray(x.unit)).read() if isinstance(x, Grouped) else x


def formatted_array(
    array: Array, beside: Array = None, key: Key | None = None, index: Index | None = None
) -> FormattedArray:
    """Return an array in its format; random bits, if needed, depend on its place in the whole."""
    shape, form = tuple(array.shape), Format(beside, key, coded_of(array.dtype.name))
    return FormattedArray(array, form, index or index_of(shape), min(1, len(shape) - 1), BITS)


def companion_dtype(p: Array, master: Array) -> str | None:
    """Return the dtype of the companions that `master_weights` keeps for a parameter, or None."""
    return BESIDE[master].dtype if master and p.dtype in LOW else None


# ---- checks


def check_part(what: str, found: Any, shape: Shape | None, signed: bool) -> None:
    """Raise unless a part of the state is as init would create it for this parameter."""
    if isinstance(found, Grouped):
        codes = [one.dtype(signed) for one in CODED.values()]
        _check_stored(f"codes of {what}", found.codes, codes, shape)
        _check_stored(f"scales of {what}", found.unit, ["float32"], scales_of(shape) if shape else None)
        return
    if found is not None and not jnp.issubdtype(getattr(found, "dtype", type(found)), jnp.inexact):
        raise StateError(f"{what} must be a floating-point array, but is {shown(found)}. {WAY_OUT}")
    if (has := None if found is None else tuple(jnp.shape(found))) != shape:
        wanted, there = ("nothing" if one is None else f"the shape {one}" for one in (shape, has))
        raise StateError(f"{what} must have {wanted}, but has {there}. {WAY_OUT}")


def _check_stored(what: str, x: Array, dtypes: list[str], shape: Shape | None) -> None:
    if not shape or tuple(jnp.shape(x)) != shape or getattr(x, "dtype", None) not in dtypes:
        must = f"{' or '.join(dtypes)} of the shape {shape}"
        raise StateError(f"the {what} must be {must}, but are {shown(x)}. {WAY_OUT}")


def check_companions(name: str, p: Array, held: Array, master: Array) -> None:
    """Raise if the companions of the weights do not have the form of `master_weights`."""
    wanted = companion_dtype(p, master)
    found = None if held is None else getattr(held, "dtype", type(held))
    if found != wanted or (held is not None and tuple(jnp.shape(held)) != tuple(p.shape)):
        allowed = f"{wanted} of the shape {tuple(p.shape)}, as {name} needs it"
        raise StateError(sentence("weights", allowed, held, f"With master_weights={master!r}. {WAY_OUT}"))
