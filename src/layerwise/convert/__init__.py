"""Conversion of an optimizer's state between frameworks: train in one, continue in the other.

`read` reads the state of an optimizer, and `write` writes it into another one with the same rule. Convert the
parameters yourself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from layerwise.convert._kept import Axes as Axes
from layerwise.convert._kept import Names as Names
from layerwise.convert._sides import read, write

if TYPE_CHECKING:
    from layerwise.convert._jax import from_optax, from_torch, stored_as, to_optax, to_torch

__all__ = ["from_optax", "from_torch", "read", "stored_as", "to_optax", "to_torch", "write"]

if not TYPE_CHECKING:  # a type checker would assume that every name exists

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("layerwise.convert._jax"), name)  # needs JAX
