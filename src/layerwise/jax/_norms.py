"""Sums of squares that neither overflow nor vanish, in the dtype of the arithmetic.

The square of a number that float32 holds need not fit it, and JAX has float64 only where it is switched on. So a sum of
squares has three columns: as it is, and with the numbers first multiplied or divided by a power of two. Whatever the
norm, one column is right, and `length` takes that one. Columns add up as numbers do, over blocks, tensors and devices.

The first column is nearly always right. A CPU would need a pass for each of the others, so except for short tensors it
derives them from the first where that is right, and measures them where it is not. Accelerators measure all three in
one pass, because there a branch would wait for the number that decides it. So do several devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from layerwise.rules.arrays import is_complex, square
from layerwise.rules.asks import Shape
from layerwise.rules.scalars import root

# Up to how many entries three passes take less time than a branch.
SHORT = 1 << 12


class Columns(NamedTuple):
    """A sum of squares: a partial sum, a total or a mean, with one number for each block."""

    plain: Any
    raised: Any  # for numbers whose squares are too small: times `factor` squared
    lowered: Any  # for numbers whose squares are too large: divided by it

    def __add__(self, other: Any) -> Columns:
        return Columns(*(x + y for x, y in zip(self, other, strict=True)))

    def __truediv__(self, n: Any) -> Columns:
        return Columns(*(x / n for x in self))


class Limits(NamedTuple):
    """The range of sums that the first column holds to the dtype's precision, and the factors of the other two."""

    low: float
    high: float
    factor: float
    largest: float


@cache
def limits(dtype: Any) -> Limits:
    """Return the limits of a floating dtype.

    The factor raises the smallest number to one whose square is normal, and lowers the largest to one whose squares can
    be added up. The limits leave room for sums and means of 2^30 numbers.
    """
    own = jnp.finfo(dtype)
    power = own.nmant - own.minexp // 2
    low, high = 2.0 ** (-own.maxexp // 2 - 12), 2.0 ** (own.maxexp - 8)
    return Limits(low, high, 2.0**power, float(own.max))


class Root(NamedTuple):
    """The root of a total or of a mean."""

    value: Any


class Wanted(NamedTuple):
    """The requested sums of squares of an array."""

    dims: Shape  # what they run over; kept with size 1
    entries: int | None  # of a total that is complete: the number to divide it by before its root is taken


def measured(terms: Sequence[Any], wanted: Sequence[Wanted]) -> list[Columns | Root]:
    """Return the sums of squares of each array."""
    alike: dict[Any, list[int]] = {}
    for i, (x, want) in enumerate(zip(terms, wanted, strict=True)):
        alike.setdefault((x.shape, x.dtype, want), []).append(i)
    found: dict[int, Columns | Root] = {}
    for (*_, want), places in alike.items():
        found |= zip(places, _of_alike([terms[i] for i in places], want), strict=True)
    return [found[i] for i in range(len(terms))]


@partial(jax.jit, static_argnums=1)
def _of_alike(terms: Sequence[Any], wanted: Wanted) -> list[Columns | Root]:
    """Return the same for arrays of one shape. Jitted, because an eager branch is slow."""
    if not branches() or terms[0].size < SHORT:
        return [_finished(_in_one_pass(x, wanted.dims), wanted.entries) for x in terms]
    return completed([first_column(x, wanted.dims) for x in terms], lambda: terms, wanted)


def branches() -> bool:
    """Return True if a branch may compute a rarely needed sum: not if it would add over devices."""
    return jax.default_backend() == "cpu" and jax.device_count() == 1


def completed(firsts: Sequence[Any], terms: Callable[[], Sequence[Any]], wanted: Wanted) -> list[Columns | Root]:
    """Return all columns, or the roots, given the first. `terms` makes the arrays if they must be read again.

    The arrays share a branch, and nothing else: XLA compiles what is the same for each of them once.
    """
    if not branches():
        return [_finished(_in_one_pass(x, wanted.dims), wanted.entries) for x in terms()]

    def derived() -> list[Columns | Root]:
        return [_derived(first, wanted) for first in firsts]

    def rescaled() -> list[Columns | Root]:
        return [_rescaled(x, first, wanted) for x, first in zip(terms(), firsts, strict=True)]

    # The barrier, because what is fused into a list of hundreds is compiled for each of them.
    every = jax.lax.optimization_barrier(jnp.concatenate([jnp.ravel(first) for first in firsts]))
    found: list[Columns | Root] = jax.lax.cond(jnp.any(_is_small(every) | _is_large(every)), rescaled, derived)
    return found


@partial(jax.jit, static_argnums=1)
def _derived(first: Any, wanted: Wanted) -> Columns | Root:
    """Return all columns, or the root, where the first column is right."""
    if wanted.entries is None:
        return Columns(first, *_others(first))
    return Root(root(jnp, first / wanted.entries))


def _others(first: Any) -> tuple[Any, Any]:
    """Return the other columns, where the first is right."""
    factor, largest = limits(first.dtype).factor, limits(first.dtype).largest
    # The bounds keep a compiler from making one factor of two, which the dtype would not hold.
    return jnp.minimum(first * factor, largest) * factor, jnp.maximum(first / factor, 0.0) / factor


@partial(jax.jit, static_argnums=2)
def _rescaled(x: Any, first: Any, wanted: Wanted) -> Columns | Root:
    """Return the same, where one of the others has to be measured as well."""
    factor, small, large = limits(first.dtype).factor, _is_small(first), _is_large(first)
    scale = jnp.where(large, 1 / factor, jnp.where(small, factor, 1.0)).astype(first.dtype)
    found = first_column(x * scale, wanted.dims)
    if wanted.entries is not None:
        return Root(_divided(root(jnp, found / wanted.entries), scale))
    raised, lowered = _others(first)
    return Columns(first, jnp.where(small, found, raised), jnp.where(large, found, lowered))


def _finished(columns: Columns, entries: int | None) -> Columns | Root:
    return columns if entries is None else Root(length(columns / entries))


def first_column(x: Any, dims: Shape) -> Any:
    """Return the first column of the sum of squares over these dimensions, which are kept with size 1."""
    return jnp.sum(square(x), axis=dims, keepdims=True)


def _in_one_pass(x: Any, dims: Shape) -> Columns:
    if is_complex(x):
        return _in_one_pass(x.real, dims) + _in_one_pass(x.imag, dims)
    its = limits(x.dtype)

    def scaled(factor: float) -> Any:
        # The bounds keep a compiler from scaling the squares instead, and derivatives of unused columns finite.
        return first_column(jnp.clip(x * factor, -its.largest, its.largest), dims)

    return Columns(first_column(x, dims), scaled(its.factor), scaled(1 / its.factor))


def _is_small(first: Any) -> Any:
    return first < limits(first.dtype).low


def _is_large(first: Any) -> Any:
    return first > limits(first.dtype).high


def length(squares: Columns | Root) -> Any:
    """Return the root: finite and not 0 for finite numbers that are not all 0."""
    if isinstance(squares, Root):
        return squares.value
    first = squares.plain
    its, small, large = limits(first.dtype), _is_small(first), _is_large(first)
    found = root(jnp, jnp.where(large, squares.lowered, jnp.where(small, squares.raised, first)))
    return _divided(found, jnp.where(large, 1 / its.factor, jnp.where(small, its.factor, 1.0)).astype(first.dtype))


def _divided(norm: Any, scale: Any) -> Any:
    """Return a norm of scaled numbers as that of the numbers, which is finite if they are."""
    return jnp.where(jnp.isfinite(norm), jnp.minimum(norm / scale, limits(norm.dtype).largest), norm)
