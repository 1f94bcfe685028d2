"""The state of an optimizer: its parts, and how to make and check them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from layerwise.errors import StateError, sentence

Shape = tuple[int, ...]
WAY_OUT = "Make the state with init, for the same parameters and options."


def is_ours(x: Any) -> bool:
    """Return True for a state of an optimizer here."""
    return isinstance(x, tuple) and type(x).__module__ == "layerwise.jax.optimizers"


def parts(state: Any) -> tuple[Any, ...]:
    """Return the trees of a state, in the order of the rule's own parts."""
    return tuple(state[1:-1])


def computing(dtype: Any) -> Any:
    """Return the dtype of the arithmetic and of the state: at least single precision."""
    return jnp.promote_types(dtype, jnp.float32)


def real(dtype: Any) -> Any:
    return jnp.finfo(dtype).dtype


def zeros(p: Any, shape: Shape | None, dtype: str | None, signed: bool = True, by_rows: bool = False) -> Any:
    """Return one part of a parameter's state before the first step, laid out over devices like the parameter.

    A part that is never negative is real, even if the parameter is complex. `by_rows` is for scales: rows of groups.
    """
    if shape is None:
        return None
    own = computing(p.dtype)
    wanted = jnp.dtype(dtype) if dtype is not None else own if signed else real(own)
    sharding = _sharding(p, shape, by_rows)
    if sharding is not None:
        return jnp.zeros(shape, wanted, device=sharding)
    if shape == tuple(p.shape):
        return jnp.zeros_like(p, dtype=wanted)
    return jnp.zeros(shape, wanted)


def _sharding(p: Any, shape: Shape, by_rows: bool) -> NamedSharding | None:
    """Return the parameter's sharding, without cuts of dimensions that the state lacks or has shorter."""
    sharding = p.sharding if isinstance(p, jax.Array) and not isinstance(p, jax.core.Tracer) else None
    if sharding is None:
        sharding = getattr(jax.typeof(p), "sharding", None) if isinstance(p, jax.core.Tracer) else None
        if sharding is None or sharding.mesh.empty or not sharding.mesh._any_axis_explicit:
            return None
    if not isinstance(sharding, NamedSharding):
        return None
    spec = (*sharding.spec, *[None] * len(p.shape))[: len(p.shape)]
    if len(shape) != len(p.shape) or by_rows:
        spec = (spec[0], *[None] * (len(shape) - 1))
    each = zip(spec, shape, p.shape, strict=False)
    kept = [cut if _divides(sharding, cut, n, of) else None for cut, n, of in each]
    return NamedSharding(sharding.mesh, PartitionSpec(*kept))


def _divides(sharding: NamedSharding, cut: Any, n: int, of: int) -> bool:
    names: Sequence[str] = cut if isinstance(cut, tuple) else (cut,)
    if cut is None or isinstance(cut, type(PartitionSpec.UNCONSTRAINED)):
        return False
    devices = 1
    for name in names:
        devices *= sharding.mesh.shape[name]
    return n == of or (n > 1 and n % devices == 0)


def counted(count: Any) -> Any:
    """Return one more, up to the largest number of its dtype. A count below 0 is taken for 0."""
    count = jnp.maximum(jnp.asarray(count), 0)
    most = jnp.iinfo(count.dtype).max
    return jnp.where(count < most, count + 1, count)


def check_count(count: Any) -> None:
    """Raise unless this counts steps."""
    dtype = getattr(count, "dtype", type(count))
    if isinstance(count, bool) or not jnp.issubdtype(dtype, jnp.integer) or jnp.shape(count) != ():
        raise StateError(sentence("count", "one integer", count, f"Of the state, it is the steps taken. {WAY_OUT}"))
    if _is_known(count) and int(count) < 0:
        raise StateError(sentence("count", "≥ 0", count, f"Of the state, it is the steps taken. {WAY_OUT}"))


def _is_known(count: Any) -> bool:
    """Return True if reading the number waits for no computation and for no copy from a device."""
    if not isinstance(count, jax.Array):
        return True
    if isinstance(count, jax.core.Tracer):
        return False
    array: Any = count  # its type does not name `is_ready`
    return bool(array.is_ready()) and all(device.platform == "cpu" for device in count.devices())


def check_part(what: str, found: Any, shape: Shape | None) -> None:
    """Raise unless a part of the state is what init would make for this parameter."""
    if found is not None and not jnp.issubdtype(getattr(found, "dtype", type(found)), jnp.inexact):
        raise StateError(f"{what} must be a floating array, but is {found!r}. {WAY_OUT}")
    if (None if found is None else tuple(jnp.shape(found))) != shape:
        has = "nothing" if found is None else f"the shape {tuple(jnp.shape(found))}"
        wanted = "nothing" if shape is None else f"the shape {shape}"
        raise StateError(f"{what} must have {wanted}, but has {has}. {WAY_OUT}")
