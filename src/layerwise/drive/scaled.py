"""Sums of squares that neither overflow nor vanish in the dtype of the arithmetic, on any library's functions."""

from __future__ import annotations

from math import inf, prod
from typing import Any, NamedTuple


class Scaled(NamedTuple):
    """A sum of squares as a factor and the sum of the squares of what is divided by it, which fits the dtype."""

    factor: Any
    sum: Any

    def __truediv__(self, n: Any) -> Scaled:
        return Scaled(self.factor, self.sum / n)


class Namespace:
    """A library's functions, with sums of squares in this form."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def squares(self, terms: Any, dims: tuple[int, ...]) -> Scaled:
        """Sum the squares over these dimensions, of the terms divided by the largest of them."""
        sizes = abs(terms)
        if dims and prod(terms.shape):
            sizes = self.amax(sizes, axis=dims, keepdims=True)
        factor = self.where((sizes == 0) | (sizes == inf), self.ones_like(sizes), sizes)
        shares = terms / factor
        return Scaled(factor, self.sum(shares * shares, axis=dims, keepdims=True) if dims else shares * shares)

    def length(self, squares: Scaled) -> Any:
        """Return the root of a sum of squares."""
        return squares.factor * self.sqrt(squares.sum)
