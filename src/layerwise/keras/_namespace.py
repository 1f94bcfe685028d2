"""Keras's arrays as rules take them: the functions of the backend's own library, and norms that fit its dtype."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from math import inf, prod
from typing import Any, NamedTuple

import keras

from layerwise.errors import EngineError

MODULES = {"jax": "jax.numpy", "torch": "torch", "numpy": "numpy"}


class Scaled(NamedTuple):
    """A sum of squares as a factor and the sum of the squares of what is divided by it, which fits the dtype."""

    factor: Any
    sum: Any

    def __truediv__(self, n: Any) -> Scaled:
        return Scaled(self.factor, self.sum / n)


class Namespace:
    """A library's functions, and sums of squares that neither overflow nor vanish."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def squares(self, terms: Any, dims: tuple[int, ...]) -> Scaled:
        """Sum the squares over these dimensions, of the terms divided by the largest of them."""
        xp, sizes = self._module, abs(terms)
        if dims and prod(terms.shape):
            sizes = xp.amax(sizes, axis=dims, keepdims=True)
        factor = xp.where((sizes == 0) | (sizes == inf), xp.ones_like(sizes), sizes)
        shares = terms / factor
        return Scaled(factor, xp.sum(shares * shares, axis=dims, keepdims=True) if dims else shares * shares)

    def length(self, squares: Scaled) -> Any:
        """Return the root of a sum of squares."""
        return squares.factor * self._module.sqrt(squares.sum)


@cache
def namespace() -> Namespace:
    """Return the functions of the backend that Keras runs on, of which there is one for each process."""
    backend = keras.config.backend()
    if backend not in MODULES:
        raise EngineError(
            f"layerwise.keras needs one of the backends {', '.join(MODULES)}, and Keras runs on {backend}. Set "
            "KERAS_BACKEND before Keras is imported; on TensorFlow, layerwise.numpy can step copies of the weights."
        )
    return Namespace(import_module(MODULES[backend]))
