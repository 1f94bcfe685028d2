"""Rows on a terminal: a table, or a list where that is too narrow for one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

Row = tuple[Sequence[Text], str]  # cells, which are no markup, and the style of all


def show_rows(console: Console, wide: int, columns: Mapping[str, Mapping[str, Any]], rows: Iterable[Row]) -> None:
    """Print a table if there are so many columns of characters. `columns` are headings, each with its layout."""
    if console.width < wide:
        _show_list(console, list(columns), rows)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, layout in columns.items():
        table.add_column(heading, **layout)
    for cells, style in rows:
        table.add_row(*cells, style=style)
    console.print(table)


def _show_list(console: Console, headings: Sequence[str], rows: Iterable[Row]) -> None:
    for (name, value, first, *more), style in rows:
        console.print(Text.assemble(name, ": ", value, style=style))
        console.print(Padding(first, (0, 0, 0, 4)), style=style)
        for heading, cell in zip(headings[3:], more, strict=True):
            if cell:
                console.print(Padding(Text.assemble(f"{heading}: ", cell), (0, 0, 0, 4)), style="dim")
