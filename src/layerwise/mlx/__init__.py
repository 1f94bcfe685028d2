"""The optimizers as `mlx.optimizers.Optimizer`s."""

from typing import TYPE_CHECKING

from layerwise.mlx import optimizers
from layerwise.mlx._matrices import hidden_matrices
from layerwise.mlx.optimizers import *  # noqa: F403  # its `__all__` are the optimizers
from layerwise.options.misspellings import lacking

__all__ = [*optimizers.__all__, "hidden_matrices"]


if not TYPE_CHECKING:  # a type checker would assume that every name exists

    def __getattr__(name):
        raise lacking(__name__, name, __all__)
