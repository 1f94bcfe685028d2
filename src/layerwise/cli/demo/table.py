"""The table at the end: all acts on one screen, a line for each optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from layerwise.cli.demo.result import Result, Row, shown
from layerwise.cli.demo.settings import Act, Case, Contender
from layerwise.cli.demo.words import caption

WIDE = 76  # columns; on fewer there are means without their spread
NAMES = 14  # columns
HEADINGS = ("small batch", "large, scaled", "re-tuned", "B/param")
SHORT = ("small", "scaled", "tuned", "B/par")
UNITS = {"accuracy": "test accuracy, %", "loss": "test loss, nats"}


def show(console: Console, result: Result) -> None:
    """Print the table, and what its figures mean."""
    wide = console.width >= WIDE or not console.is_terminal
    for line in lines(result, wide):
        console.print(line, soft_wrap=True)
    console.print(Text(f"{caption(result)}\n", style="dim"), soft_wrap=not console.is_terminal)


def lines(result: Result, wide: bool = True) -> Iterator[Text]:
    """Yield the table's lines, at most twenty with three acts."""
    headings = (
        ("small batch", "large, scaled", "re-tuned", "B/param") if wide else ("small", "scaled", "tuned", "B/par")
    )
    yield Text(_line("optimizer", headings, wide), style="bold")
    for act in result.acts:
        yield Text(_title(act, wide), style="bold cyan")
        for contender in act.contenders:
            yield Text(_line(contender.name, _cells(result, act, contender, wide), wide))


def _title(act: Act, wide: bool) -> str:
    batches = " and ".join(f"{batch:,}" for batch in act.batches)
    plural = "es" * (len(act.batches) > 1)
    where = f"{act.task.data}, " if wide else ""
    return f"Act {act.number}: {where}{UNITS[act.task.metric]}" + (f", batch{plural} {batches}" if wide else "")


def _line(name: str, cells: Sequence[str], wide: bool) -> str:
    widths = (15, 15, 15, 8) if wide else (5, 6, 5, 5)
    padded = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return f"{name:<{NAMES}} {('  ' if wide else ' ').join(padded)}"


def _cells(result: Result, act: Act, contender: Contender, wide: bool) -> list[str]:
    rows = [result.row(Case(act.task, contender, act.task.small))]
    if act.grows:
        rows += [result.row(Case(act.task, contender, act.task.large, retuned=again)) for again in (False, True)]
    kept = rows[0].bytes_per_parameter
    figures = [_figure(row, wide) for row in rows]
    return [*figures, *[""] * (3 - len(figures)), "" if kept is None else f"{kept:.2f}"]


def _figure(row: Row, wide: bool) -> str:
    if wide:
        return shown(row).removesuffix(" %")
    if row.diverged:
        return "div."
    return shown(row).partition(" ")[0]
