"""What is seen while the runs go on: a bar and a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from layerwise.cli.demo.cells import Cell
from layerwise.cli.demo.train import Progress as Step

EVERY = 16  # steps between two looks at the live line


class Screen:
    """Shows the work as a share of `total` steps; as a context it leaves the terminal as it found it."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        columns = (BarColumn(16), TaskProgressColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def step(self, cell: Cell, seen: Step) -> None:
        self._bar.advance(self._task)
        if seen.step % EVERY == 0 or seen.step == cell.steps:
            line = f"{title(cell)}: loss {seen.loss:.3f}, lr {seen.lr:.2g}"
            self._bar.update(self._task, description=line)

    def finished(self, cell: Cell) -> None:
        if not self._console.is_terminal:
            print(f"{title(cell)}: test accuracy {accuracy(cell)}", flush=True)


def title(cell: Cell) -> str:
    return f"{cell.contender.name}, batch {cell.batch}{', re-tuned' if cell.retuned else ''}"


def accuracy(cell: Cell) -> str:
    if cell.mean is None:
        return f"diverged ({cell.diverged} of {len(cell.seconds)})"
    spread = f" ± {cell.spread:.1f}" if len(cell.accuracies) > 1 else ""
    return f"{cell.mean:.1f}{spread}"
