"""A library's functions for one step, with sums of squares that neither overflow nor vanish."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from typing import Any, NamedTuple

from layerwise.rules.requests import Array, Coefficients, Now, Scalar, T
from layerwise.rules.scalars import Compute, H


class ScaledSum(NamedTuple):
    """A sum of squares, stored as a factor and the sum of squares of the values divided by it, which fits the dtype."""

    factor: Array
    sum: Array

    def __truediv__(self, n: Scalar) -> ScaledSum:
        return ScaledSum(self.factor, self.sum / n)


class StepNamespace:
    """A library's functions for one step."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._known: dict[object, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def once(self, key: object, make: Callable[[], T]) -> T:
        """Return a value that is the same for many tensors of the step."""
        if key not in self._known:
            self._known[key] = make()
        found: T = self._known[key]
        return found

    def coefficients(self, of: Compute[H], h: H, now: Now) -> Coefficients:
        return self.once((of, id(now)), lambda: of(self, h, now))  # computed by `once` for these settings

    def squares_in_float64(self, terms: Array, dims: tuple[int, ...]) -> Array:
        """Return the sum in float64, which holds squares of smaller dtypes, or None if float64 is unavailable."""

    def squares(self, terms: Array, dims: tuple[int, ...]) -> Array:
        """Sum the squares over these dimensions: in float64, or of the terms divided by the largest of them."""
        wide = self.squares_in_float64(terms, dims)
        if wide is not None:
            return wide
        sizes = abs(terms)
        if dims:  # nothing has no largest number, but a sum
            sizes = (self.amax if prod(terms.shape) else self.sum)(sizes, axis=dims, keepdims=True)
        factor = self.where((sizes == 0) | (sizes == inf), self.ones_like(sizes), sizes)
        shares = terms / factor
        return ScaledSum(factor, self.sum(shares * shares, axis=dims, keepdims=True) if dims else shares * shares)

    def length(self, squares: Array) -> Array:
        return squares.factor * self.sqrt(squares.sum) if isinstance(squares, ScaledSum) else self.sqrt(squares)
