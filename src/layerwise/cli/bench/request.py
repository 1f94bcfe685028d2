"""The request: the options of one run of the benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from layerwise.cli.exits import Mistake

SPARE = 0.9  # of the free memory may be taken; the rest is for what else goes on
GIB = 2**30


@dataclass(frozen=True)
class Request:
    front: str
    shapes: Sequence[str]
    model: str | None
    optimizer: Sequence[str]
    peers: bool
    against: str
    dtype: str | None
    device: str
    threads: int
    rounds: int
    memory: float | None  # GiB
    csv: Path | None
    json: Path | None

    def room(self, free: float, taken: float = 0) -> float:
        """Return the bytes that may be taken, of so many that are free and beside what is taken already."""
        return min(SPARE * free, inf if self.memory is None else self.memory * GIB - taken)

    def check_room(self, name: str, need: float, free: float) -> None:
        if need > (room := self.room(free)):
            raise Mistake(
                f"{name} does not fit the memory: it takes {need / GIB:.1f} GiB before the first step, and "
                f"{room / GIB:.1f} GiB may be taken. Take less, or --dtype bfloat16."
            )
