"""The optimizers as `mlx.optimizers.Optimizer`s."""

from layerwise.mlx import optimizers
from layerwise.mlx._matrices import hidden_matrices
from layerwise.mlx.optimizers import *  # noqa: F403  # its `__all__` are the optimizers

__all__ = [*optimizers.__all__, "hidden_matrices"]
