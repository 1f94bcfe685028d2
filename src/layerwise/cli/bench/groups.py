"""Groups of implementations that are timed together: as many as fit the memory side by side, all if they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Bytes that an optimizer keeps, and that its step takes on top."""

    state: float
    peak: float


def together(costs: Sequence[Cost]) -> float:
    """Return the memory of several: they step one after the other, but keep their state all the time."""
    return sum(cost.state for cost in costs) + max((cost.peak for cost in costs), default=0)


def grouped(costs: Mapping[str, Cost], base: str, room: float) -> Iterator[list[str]]:
    """Yield groups that fit, each with the base of the comparison, or alone if only that fits."""

    def fits(*labels: str) -> bool:
        return together([costs[label] for label in labels]) <= room

    first = [base] if base in costs and fits(base) else []
    group = list(first)
    for label in costs:
        if label in first or not fits(label):
            continue
        if fits(*group, label):
            group.append(label)
        elif fits(*first, label):
            yield group
            group = [*first, label]
        else:
            yield [label]
    if group:
        yield group
