"""The optimizers as `mlx.optimizers.Optimizer`s."""

from typing import TYPE_CHECKING

from layerwise.elsewhere import nearly
from layerwise.mlx import optimizers
from layerwise.mlx._matrices import hidden_matrices
from layerwise.mlx.optimizers import *  # noqa: F403  # its `__all__` are the optimizers

__all__ = [*optimizers.__all__, "hidden_matrices"]

if not TYPE_CHECKING:  # a checker would take every name to be there
    __getattr__ = nearly(__name__, __all__)
