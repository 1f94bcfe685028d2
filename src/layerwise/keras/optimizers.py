"""The optimizers as classes of `keras.optimizers.Optimizer`, made of what their rules declare.

`optimizers.pyi`, which `make generate` prints, shows them to readers and their tools.
"""

from collections.abc import Callable
from typing import Any

from keras.optimizers.schedules import LearningRateSchedule

from layerwise.catalog.making import TargetModule
from layerwise.keras._optimizer import Optimizer

Rate = float | LearningRateSchedule | Callable[[], Any]

_made = TargetModule(__name__, {"Rate": Rate}).classes("keras", Optimizer)
globals().update(_made)
__all__ = list(_made)
