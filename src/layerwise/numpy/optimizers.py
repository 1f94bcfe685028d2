"""The optimizers as classes that update named arrays in place, made of what their rules declare.

`optimizers.pyi`, which `make generate` prints, shows them to readers and their tools.
"""

from layerwise.catalog.making import TargetModule
from layerwise.layout.blocks import Split
from layerwise.numpy._optimizer import Optimizer

_made = TargetModule(__name__, {"Split": Split}).classes("numpy", Optimizer)
globals().update(_made)
__all__ = list(_made)
