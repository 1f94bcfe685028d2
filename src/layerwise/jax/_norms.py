"""Sums of squares that neither overflow nor vanish.

The square of a number that float32 holds need not fit it. So squares are summed in float64, also where it is switched
off: in one pass, without a branch, and without the error of a long sum in float32. What leaves here has the dtype of
the arithmetic: the root of a sum that is complete, or, of one that others are added to, three columns. These are the
sum as it is, and of numbers first multiplied or divided by a power of two. Whatever the norm, one column is right, and
`length` takes that one. Columns add up as numbers do, over blocks, tensors and devices.

On devices without float64, and in JAX before 0.8, all three columns are measured.
"""

from __future__ import annotations

from functools import cache, partial
from math import inf, sqrt
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from layerwise.drivers.partial_sums import sum_of_squares
from layerwise.jax._dtypes import common_dtype, real
from layerwise.jax._types import Array, Dtype
from layerwise.rules.arrays import is_complex
from layerwise.rules.requests import Shape
from layerwise.rules.scalars import root


class ScaledSquares(NamedTuple):
    """A sum of squares: a partial sum or a total, with one number for each block."""

    plain: Array
    raised: Array  # for numbers whose squares are too small: the sum times `factor` squared
    lowered: Array  # for numbers whose squares are too large: the sum divided by it

    def __add__(self, other: Array) -> ScaledSquares:
        return ScaledSquares(*(x + y for x, y in zip(self, other, strict=True)))

    def __truediv__(self, n: Array) -> ScaledSquares:
        return ScaledSquares(*(x / n for x in self))


class SquareLimits(NamedTuple):
    """The range of sums that the first column represents precisely, and the factor of the other two."""

    low: float
    high: float
    factor: float
    largest: float


@cache
def limits(dtype: Dtype) -> SquareLimits:
    """Return the limits of a floating-point dtype.

    The factor raises the smallest number so that its square is normal, and lowers the largest so that its squares can
    be added up. The limits leave room for sums and means of 2^30 numbers.
    """
    own = jnp.finfo(dtype)
    power = own.nmant - own.minexp // 2
    low, high = 2.0 ** (-own.maxexp // 2 - 12), 2.0 ** (own.maxexp - 8)
    return SquareLimits(low, high, 2.0**power, float(own.max))


FAR, MUCH = 2.0**64, 2.0**100  # a part of a norm, where it is larger than this


class Root(NamedTuple):
    """The root of a total or of a mean: a number that fits the dtype, and the power of two that it is multiplied by."""

    value: Array
    unit: Array

    def __truediv__(self, n: float) -> Root:
        return Root(self.value, self.unit / sqrt(n))


def has_float64() -> bool:
    """Return True if 64-bit numbers are available besides others, and the device computes with them."""
    return hasattr(jax, "enable_x64") and jax.default_backend() in ("cpu", "gpu", "cuda", "rocm")


@partial(jax.jit, static_argnums=(1, 2), inline=True)
def sum_squares(x: Array, dims: Shape, entries: int | None) -> ScaledSquares | Root:
    """Return the sum of squares over these dimensions, which are kept with size 1.

    For a complete total, `entries` is the number to divide it by before taking the root. Jitted, so that code shared by
    many tensors is traced once.
    """
    if not has_float64():
        columns = _in_one_pass(x, dims)
        if entries is None:
            return columns
        return _root_of(columns / entries)
    dtype = real(x.dtype)
    its = limits(dtype)
    with jax.enable_x64(True):
        squares = sum_of_squares(jnp, x.astype(common_dtype(x.dtype, jnp.float64)), dims)
        if entries is None:
            others = squares * its.factor * its.factor, squares / its.factor / its.factor
            return ScaledSquares(*(one.astype(dtype) for one in (squares, *others)))
        norm = root(INLINED, squares / entries)
        far = norm > MUCH
        return Root(_select(far, norm / FAR, norm).astype(dtype), jnp.where(far, FAR, 1.0).astype(dtype))


def _root_of(columns: ScaledSquares) -> Root:
    """Return the root of a total, or a part of it where the root might not fit the dtype."""
    dtype, factor = columns.plain.dtype, limits(columns.plain.dtype).factor
    far = columns.lowered > (MUCH / factor) ** 2
    part = root(jnp, jnp.where(far, columns.lowered, 1.0)) * (factor / FAR)
    return Root(jnp.where(far, part, length(columns)), jnp.where(far, FAR, 1.0).astype(dtype))


def _in_one_pass(x: Array, dims: Shape) -> ScaledSquares:
    if is_complex(x):
        return _in_one_pass(x.real, dims) + _in_one_pass(x.imag, dims)
    its = limits(x.dtype)

    def scaled(factor: float) -> Array:
        # The bounds keep compilers from scaling the squares instead, and keep derivatives of unused columns finite.
        return sum_of_squares(jnp, jnp.clip(x * factor, -its.largest, its.largest), dims)

    return ScaledSquares(sum_of_squares(jnp, x, dims), scaled(its.factor), scaled(1 / its.factor))


def length(squares: ScaledSquares | Root) -> Array:
    """Return the root: finite, and not 0 for finite numbers that are not all 0."""
    if isinstance(squares, Root):
        return _divided(squares.value, 1 / squares.unit, limits(squares.value.dtype))
    first = squares.plain
    its = limits(first.dtype)
    small, large = first < its.low, first > its.high
    found = root(jnp, jnp.where(large, squares.lowered, jnp.where(small, squares.raised, first)))
    scale = jnp.where(large, 1 / its.factor, jnp.where(small, its.factor, 1.0)).astype(first.dtype)
    return _divided(found, scale, its)


def _divided(norm: Array, scale: Array, its: SquareLimits) -> Array:
    """Return a norm of scaled numbers as the norm of the numbers, which fits the dtype if they are finite."""
    found = norm / scale
    return _select(found <= its.largest, found, _select(norm < inf, its.largest, norm))


def _select(condition: Array, yes: Array, no: Array) -> Array:
    """Return the same as `where`, in one operation: derivatives of several are built where float64 may be off."""
    like = no if isinstance(yes, float) else yes
    return lax.select(condition, *(lax.full_like(like, x) if isinstance(x, float) else x for x in (yes, no)))


INLINED = SimpleNamespace(sqrt=jnp.sqrt, where=_select)
