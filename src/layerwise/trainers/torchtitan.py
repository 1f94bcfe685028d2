"""torchtitan's container of optimizers, which knows these by name."""

from layerwise.contrib.trainers.torchtitan import OptimizersContainer

__all__ = ["OptimizersContainer"]
