"""Who takes part, at which batches, and with which learning rates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from layerwise.cli.demo.data import TRAIN
from layerwise.numpy import Adafactor, Lamb, Lars

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class Contender:
    """An optimizer, and the learning rates that were found for it."""

    name: str
    lr: float  # at the small batch
    retuned: float  # at the large batch
    make: Callable[[Schedule | float], Lamb | Lars | Adafactor]


@dataclass(frozen=True)
class Plan:
    """How long and how often everything is trained."""

    epochs: int
    warmup: int  # in steps, the same at every batch
    seeds: int
    retuned: bool = True  # whether to show the rates tuned at the large batch, which are for this length
    small: int = 32
    large: int = TRAIN

    def steps(self, batch: int) -> int:
        return self.epochs * (TRAIN // batch)

    def scaled(self, lr: float, batch: int) -> float:
        """The usual square-root rule."""
        return lr * sqrt(batch / self.small)


FULL = Plan(epochs=30, warmup=6, seeds=3)
QUICK = Plan(epochs=10, warmup=2, seeds=1, retuned=False)

# The rates are what benchmarks/tune_demo.py finds: of seven, a factor of 2 apart, the one with the lowest mean loss on
# the validation images over two seeds that the demo does not use, at each batch. Each is the middle of its seven.
# LAMB at batch 32 comes down to the loss of 0.005 once more at 0.08, with losses up to 5 in between.
CONTENDERS = (
    Contender("SGD, momentum", 0.04, 0.226, lambda lr: Lars(lr, weight_decay=1e-4, adapt=False)),
    # The biases start at zero, where there is no ratio: they begin with a small one instead of 1.
    Contender("LARS", 16.0, 45.3, lambda lr: Lars(lr, weight_decay=1e-4, zero_norm_ratio=1e-3)),
    Contender("AdamW", 0.004, 0.0113, lambda lr: Lamb(lr, weight_decay=0.01, decay="decoupled", adapt=False)),
    Contender("LAMB", 0.005, 0.0566, lambda lr: Lamb(lr, weight_decay=0.01)),
    Contender("Adafactor", 0.01, 0.226, lambda lr: Adafactor(lr, scale_parameter=True)),
)
