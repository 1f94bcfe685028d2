"""The optimizers as classes of `torch.optim.Optimizer`, made of what their rules declare.

`optimizers.pyi`, which `make generate` prints, shows them to readers and their tools.
"""

from typing import Any

from torch import Tensor, distributed

from layerwise.catalog.making import TargetModule
from layerwise.layout.blocks import BlocksByName
from layerwise.torch._optimizer import Optimizer

Rate = float | Tensor
"""A number, or a tensor of one, as a captured CUDA graph reads it."""
TYPES = {"BlocksByName": BlocksByName, "ProcessGroup": getattr(distributed, "ProcessGroup", Any), "Rate": Rate}

_made = TargetModule(__name__, TYPES).classes("torch", Optimizer)
globals().update(_made)
__all__ = list(_made)
