"""The events of the demo's training, for the display."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

from layerwise.cli.demo.outcome import Outcome, Progress
from layerwise.cli.demo.settings import Run


@dataclass(frozen=True)
class Started:
    run: Run


@dataclass(frozen=True)
class Moved:
    run: Run
    progress: Progress


@dataclass(frozen=True)
class Finished:
    run: Run
    outcome: Outcome


Event = Started | Moved | Finished
Events = Generator[Event, None, None]


class Listener(Protocol):
    """A live screen or plain lines."""

    def see(self, event: Event) -> None: ...
    def __enter__(self) -> Listener: ...
    def __exit__(self, *_: object) -> None: ...
