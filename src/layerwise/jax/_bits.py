"""JAX's view of the bits of numbers: 32-bit integers, because 64-bit ones exist only if they are switched on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from layerwise.jax._types import Array, Dtype
from layerwise.storage.bit_views import BitFunctions
from layerwise.storage.bits import WORD
from layerwise.storage.index import Index


class Words:
    """Arrays of uint32 with the operators of integers, modulo 2^32; JAX refuses Python integers beyond int32."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __neg__(self) -> Words:
        return Words(-self.array)

    def __hash__(self) -> int:
        raise TypeError("arrays are not hashable")


def _plain(x: Array) -> Array:
    """Return an operand as uint32; Python integers are taken modulo 2^32, and signed arrays keep their bits."""
    if isinstance(x, Words):
        return x.array
    return np.uint32(x & WORD) if isinstance(x, int) else _unsigned(x)


def _unsigned(x: Array) -> Array:
    return x.astype(jnp.uint32) if x.dtype != jnp.int32 else jax.lax.bitcast_convert_type(x, jnp.uint32)


def _operator(name: str, compares: bool) -> Callable[[Words, Array], Array]:
    def operator(self: Words, other: Array) -> Array:
        found = getattr(jnp.asarray(self.array), name)(_plain(other))
        return found if compares else Words(found)

    return operator


for _name in ("and", "or", "xor", "add", "sub", "mul", "lshift", "rshift"):
    for _side in ("", "r"):
        setattr(Words, f"__{_side}{_name}__", _operator(f"__{_side}{_name}__", compares=False))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Words, f"__{_name}__", _operator(f"__{_name}__", compares=True))


class ExactDivision:
    """jax.numpy, except for division by a number: XLA would multiply by its reciprocal, which rounds differently."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    @staticmethod
    def concat(arrays: Sequence[Array], axis: int) -> Array:
        return jnp.concatenate(arrays, axis=axis)

    @staticmethod
    def full_like(x: Array, value: float) -> Array:
        return jax.lax.optimization_barrier(jnp.full_like(x, value))


def _integers(x: Array) -> Array:
    """Return nonnegative floating-point numbers truncated to 32-bit integers."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        return Words(x.astype(jnp.uint32))
    return x.astype(jnp.int32)


def _as_floats(x: Array) -> Array:
    """Return numbers in float32. XLA would take subnormal bfloat16 numbers for 0, so these are converted bit by bit."""
    if isinstance(x, Words):
        return x.array.astype(jnp.float32)
    if x.dtype == jnp.bfloat16:
        upper = jax.lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32)
        return jax.lax.bitcast_convert_type(upper << np.uint32(16), jnp.float32)
    return x.astype(jnp.float32)


def _where(condition: Array, x: Array, y: Array) -> Array:
    if isinstance(x, (Words, int)) and isinstance(y, (Words, int)):
        return Words(jnp.where(condition, _plain(x), _plain(y)))
    return jnp.where(condition, *(one.array if isinstance(one, Words) else one for one in (x, y)))


def _shifted(x: Array, by: int) -> Words:
    return Words(_plain(x) << np.uint32(by))


def _step(t: Array) -> tuple[Array, Array]:
    upper = t >> 32 if t.dtype.itemsize > 4 else jnp.zeros_like(t)
    return Words(t.astype(jnp.uint32)), Words(upper.astype(jnp.uint32))


def _indices(index: Index, like: Array) -> tuple[Array, int]:
    """Return the numbers of an index, which are below 2^32. If they are used at once, XLA stores nothing."""
    found: Array = Words(jnp.full(index.shape, 0, jnp.uint32))
    for d, stride in enumerate(index.strides):
        along: Array = Words(jax.lax.broadcasted_iota(jnp.uint32, index.shape, d))
        found = found + along * stride
    return found + index.offset, 0


def rounded(x: Array, dtype: Dtype) -> Array:
    """Return float32 numbers in another dtype: in bfloat16 to nearest, including those that XLA takes for 0."""
    if isinstance(x, Words):
        return jax.lax.bitcast_convert_type(x.array, jnp.int32).astype(dtype)
    if dtype != jnp.bfloat16:
        return x.astype(dtype)
    u = jax.lax.bitcast_convert_type(x, jnp.uint32)
    even = (u >> np.uint32(16)) & np.uint32(1)
    upper = ((u + (np.uint32(0x7FFF) + even)) >> np.uint32(16)).astype(jnp.uint16)
    return jax.lax.bitcast_convert_type(jnp.where(x == x, upper, np.uint16(0x7FC0)), jnp.bfloat16)


BITS: BitFunctions = SimpleNamespace(
    xp=ExactDivision(),
    word=lambda x: x & WORD if isinstance(x, int) else x,
    integers=_integers,
    as_floats=_as_floats,
    bits=lambda x: Words(jax.lax.bitcast_convert_type(x, jnp.uint32)),
    floats=lambda u: jax.lax.bitcast_convert_type(_plain(u), jnp.float32),
    shifted=_shifted,
    where=_where,
    dtype=lambda array: array.dtype.name,
    indices=_indices,
    step=_step,
)
