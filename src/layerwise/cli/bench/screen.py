"""What is seen while steps are timed: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn


class Screen:
    """As a context it leaves the terminal as it found it."""

    def __init__(self, console: Console) -> None:
        columns = (BarColumn(16), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def begin(self, what: str, total: int) -> None:
        self._bar.reset(self._task, total=total, description=escape(what))

    def tell(self, what: str, steps: int) -> None:
        self._bar.update(self._task, advance=steps, description=escape(what))
