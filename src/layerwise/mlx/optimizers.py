"""The optimizers as classes of `mlx.optimizers.Optimizer`, made of what their rules declare.

`optimizers.pyi`, which `make generate` prints, shows them to readers and their tools.
"""

from collections.abc import Callable
from typing import Any

from layerwise.catalog.making import TargetModule
from layerwise.mlx._optimizer import Optimizer

Rate = float | Callable[[Any], Any]

_made = TargetModule(__name__, {"Rate": Rate}).classes("mlx", Optimizer)
globals().update(_made)
__all__ = list(_made)
