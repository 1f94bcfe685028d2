"""Timing in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
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


def alternately(
    steps: Mapping[str, Step],
    rounds: int,
    warmup: int = 2,
    together: Callable[[], object] = lambda: None,
    clock: Clock = wall,
) -> dict[str, Timing]:
    """Time steps in turns, so that whatever else the machine does meets them alike.

    Processes that take their steps together wait for one another in `together`, which is not timed.
    """
    found = {name: Timing() for name in steps}
    for round_ in range(-warmup, rounds):
        for name, step in steps.items():
            together()
            _, seconds = clock(step)
            if round_ >= 0:
                found[name].rounds.append(seconds)
    return found
