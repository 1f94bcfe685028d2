"""Help for screens of any width; typer's is for 50 columns and more."""

from __future__ import annotations

from collections.abc import Sequence
from shutil import get_terminal_size
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

WIDE = 60  # columns; on fewer, what an option does stands below its name
Formatter: Any = typer.Context.formatter_class


class Narrow(Formatter):  # type: ignore[misc]  # typer's copy of click has no public name
    """Help with a first column that leaves room for the second."""

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl(rows, 4, col_spacing)


def fit(context: typer.Context) -> typer.Context:
    """Return a context whose help fits the screen."""
    columns = min(get_terminal_size().columns, 80)
    context.terminal_width = columns - 2
    if columns < WIDE:
        context.formatter_class = Narrow
    return context


class Group(TyperGroup):
    def get_help(self, ctx: Any) -> str:
        return super().get_help(fit(ctx))


class Command(TyperCommand):
    def get_help(self, ctx: Any) -> str:
        return super().get_help(fit(ctx))
