"""The table at the end: figures with their spread over seeds, and how they changed from the small batch."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from layerwise.cli.demo.result import Result, Row, change, shown
from layerwise.cli.demo.settings import Act
from layerwise.cli.demo.words import caption

RATE = 4
HEADINGS = ("optimizer", "batch", "", "change", "learning\nrate", "kept,\nB/param")
WIDE = 76  # columns; on fewer the learning rate is left to the report


def show(console: Console, result: Result) -> None:
    for act in result.acts:
        console.print(Text(f"Act {act.number}. {act.title}", style="bold"))
        console.print(table(result, act, wide=console.width >= WIDE))
    console.print(Text(f"{caption(result)}\n", style="dim"))


def table(result: Result, act: Act, wide: bool = True) -> Table:
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    figure = "test accuracy" if act.task.metric == "accuracy" else "test loss,\nnats/character"
    for i, heading in enumerate(HEADINGS):
        if wide or i != RATE:
            found.add_column(heading or figure, justify="left" if i == 0 else "right", no_wrap=True)
    for row in result.rows(act):
        cells = texts(result, row)
        found.add_row(
            *(cells if wide else [*cells[:RATE], *cells[RATE + 1 :]]), style="dim" if row.case.retuned else ""
        )
    return found


def texts(result: Result, row: Row) -> list[str]:
    case, moved, kept = row.case, change(result, row), row.bytes_per_parameter
    digits = 1 if case.task.metric == "accuracy" else 3
    return [
        case.name,
        f"{case.batch:,}",
        shown(row),
        "" if moved is None else f"{moved:+.{digits}f}",
        f"{case.lr:.3g}",
        "" if kept is None else f"{kept:.2f}",
    ]
