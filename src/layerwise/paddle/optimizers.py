"""The optimizers as classes of `paddle.optimizer.Optimizer`, made of what their rules declare.

`optimizers.pyi`, which `make generate` prints, shows them to readers and their tools.
"""

from paddle import Tensor
from paddle.nn.clip import GradientClipBase
from paddle.optimizer.lr import LRScheduler

from layerwise.catalog.making import TargetModule
from layerwise.layout.blocks import BlocksByName
from layerwise.paddle._optimizer import Optimizer

TYPES = {
    "BlocksByName": BlocksByName,
    "GradientClipBase": GradientClipBase,
    "LRScheduler": LRScheduler,
    "Tensor": Tensor,
}

_made = TargetModule(__name__, TYPES).classes("paddle", Optimizer)
globals().update(_made)
__all__ = list(_made)
