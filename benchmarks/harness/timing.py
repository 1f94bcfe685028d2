"""Steps and clocks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

Step = Callable[[], object]
# Seconds until the call returned, and until what it asked for was done.
Clock = Callable[[Step], tuple[float, float]]


@dataclass
class Running:
    """An implementation at work on tensors; it has made its first step, and so its state."""

    label: str
    step: Step
    state_bytes: Callable[[], int]
    peak: Callable[[], int]  # bytes that a step takes on top


@dataclass(frozen=True)
class Timing:
    """Seconds of each round, or another figure of each."""

    rounds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.rounds) == 1:
            return self.rounds[0], self.rounds[0]
        low, _, high = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return low, high

    def over(self, other: Timing) -> Timing:
        """Return the ratio in each round, where both met the same machine."""
        return Timing([mine / theirs for mine, theirs in zip(self.rounds, other.rounds, strict=False)])


def wall(step: Step) -> tuple[float, float]:
    """Return the clock of a processor, which is done when the call returns."""
    start = time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    return seconds, seconds
