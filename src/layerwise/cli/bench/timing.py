"""Timing in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

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

    rounds: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.rounds) == 1:
            return self.rounds[0], self.rounds[0]
        low, _, high = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return low, high

    def and_(self, more: Timing) -> Timing:
        return Timing([*self.rounds, *more.rounds])

    def over(self, other: Timing) -> Timing:
        """Return the ratio in each round, where both met the same machine."""
        return Timing([mine / theirs for mine, theirs in zip(self.rounds, other.rounds, strict=False)])


def wall(step: Step) -> tuple[float, float]:
    """Return the clock of a processor, which is done when the call returns."""
    start = time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    return seconds, seconds


class Turns:
    """Steps timed in turns, so that whatever else the machine does meets them alike.

    What was measured so far is there at any time. Processes that take their steps together wait for one another in
    `together`, which is not timed. A step whose failure `without` holds back takes no more turns and is forgotten.
    """

    def __init__(
        self,
        steps: Mapping[str, Step],
        clock: Clock = wall,
        together: Callable[[], object] = lambda: None,
        without: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._steps, self._clock, self._together, self._without = dict(steps), clock, together, without
        self._seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}

    def take(self, rounds: int, warmup: int = 2) -> Iterator[str]:
        """Go on as long as the names that come back are asked for; each has just been stepped."""
        for round_ in range(-warmup, rounds):
            for name in list(self._steps):
                self._together()
                timed: list[tuple[float, float]] = []
                with self._without(name):
                    timed.append(self._clock(self._steps[name]))
                if not timed:
                    del self._steps[name], self._seconds[name]
                elif round_ >= 0:
                    self._seconds[name] += timed
                yield name

    def timings(self) -> dict[str, Timing]:
        return {name: Timing([total for _, total in seconds]) for name, seconds in self._seconds.items() if seconds}

    def host(self) -> dict[str, Timing]:
        return {name: Timing([host for host, _ in seconds]) for name, seconds in self._seconds.items() if seconds}


def alternately(
    steps: Mapping[str, Step],
    rounds: int,
    warmup: int = 2,
    together: Callable[[], object] = lambda: None,
    clock: Clock = wall,
) -> dict[str, Timing]:
    turns = Turns(steps, clock, together)
    for _ in turns.take(rounds, warmup):
        pass
    return turns.timings()
