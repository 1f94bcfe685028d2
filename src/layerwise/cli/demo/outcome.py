"""The reports of a run while it trains, and its outcome: plain data, without PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

Ratios = dict[str, float]


@dataclass(frozen=True)
class Progress:
    step: int
    loss: float
    ratios: Ratios


@dataclass(frozen=True)
class Noise:
    """The gradient noise scale, in examples, and how many steps it is an average of."""

    scale: float
    parts: int
    steps: int


@dataclass
class Outcome:
    """The outcome of a run. A run that diverged has no figures, and its last loss is not finite."""

    accuracy: float | None = None  # on the test images, or of the next character of the test text, in percent
    loss: float | None = None  # on the same, in nats
    parameters: int = 0
    weight_bytes: int = 0
    state_bytes: int = 0
    seconds: float = 0.0  # of the steps, without getting ready
    losses: list[tuple[int, float]] = field(default_factory=list)  # of the batch, by step
    ratios: list[tuple[int, Ratios]] = field(default_factory=list)
    noise: Noise | None = None

    @property
    def bytes_per_parameter(self) -> float:
        """Weights and state, without gradients."""
        return (self.weight_bytes + self.state_bytes) / self.parameters

    @property
    def diverged(self) -> bool:
        return bool(self.losses) and not math.isfinite(self.losses[-1][1])
