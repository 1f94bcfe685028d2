"""The table of what is recommended for a batch size."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from layerwise.recipes import Line, Recommendation


def show_recommendation(console: Console, found: Recommendation) -> None:
    """A table on a terminal; elsewhere a line for each setting."""
    if not console.is_terminal:
        print(found)
        return
    title, *_ = found.explain()
    console.print(Text(title, style="bold"))
    console.print(_table(found))
    for note in found.notes:
        console.print(Text(f"note: {note}"))
    for source in found.sources:
        console.print(Text(source, style="dim"))


def as_json(found: Recommendation) -> str:
    more = {"warmup_steps": found.warmup_steps, "extrapolated": found.extrapolated, "kwargs": found.kwargs()}
    return json.dumps(asdict(found) | more, indent=2, ensure_ascii=False)


def _table(found: Recommendation) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_lines=False, pad_edge=False)
    table.add_column("setting", no_wrap=True)
    table.add_column("value", no_wrap=True)
    table.add_column("where it is from, and how far away")
    for line in found.lines:
        table.add_row(*_row(line), style="dim" if line.alternative else "")
    return table


def _row(line: Line) -> tuple[Text, ...]:
    setting = f"  {line.setting}" if line.alternative else line.setting
    far = (f"\n{line.how_far}", "yellow" if line.extrapolated else "cyan")
    return Text(setting), Text(line.value, style="" if line.alternative else "bold"), Text.assemble(line.why, far)
