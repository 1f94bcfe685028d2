"""The display while steps are timed: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from layerwise.cli.bench import measure

PAUSE = 0.1  # seconds between two looks


class Screen(measure.Screen):
    """A progress bar, drawn between steps only, to take no time from them.

    As a context, it leaves the terminal as it found it.
    """

    def __init__(self, console: Console) -> None:
        columns = (BarColumn(16), TaskProgressColumn(), TextColumn("{task.description}"))
        terminal = console.is_terminal
        self._bar = Progress(*columns, console=console, transient=True, disable=not terminal, auto_refresh=False)
        self._task = self._bar.add_task("", total=None)
        self._drawn = 0.0

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def begin(self, what: str, steps: int) -> None:
        self._bar.reset(self._task, total=steps, description=escape(what))
        self._bar.refresh()

    def advance(self, what: str, steps: int) -> None:
        self._bar.update(self._task, advance=steps, description=escape(what))
        if time.perf_counter() - self._drawn > PAUSE:
            self._bar.refresh()
            self._drawn = time.perf_counter()
