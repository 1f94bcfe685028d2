"""What tables are shown with: rich, or plain lines where it is not installed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text
else:
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table as Grid
        from rich.text import Text
    except ImportError:
        box = SimpleNamespace(SIMPLE_HEAD=None)

        class Text(str):
            """A line without its style."""

            def __new__(cls, text: str, style: str = "") -> Text:
                return str.__new__(cls, text)

        class Console:
            """Prints lines of any width."""

            is_terminal, width = False, 0
            options = SimpleNamespace(update=lambda width: None)

            def __init__(self, file: Any = None, width: int = 0, color_system: Any = None) -> None:
                self.file = file or sys.stdout

            def print(self, *things: Any, **_: Any) -> None:
                print(*things, file=self.file)

            def measure(self, grid: Any, options: Any) -> Any:
                return SimpleNamespace(maximum=0)

        class Grid:
            """A table of aligned columns."""

            def __init__(self, title: str = "", **_: Any) -> None:
                self._title, self._rows, self._justified = title, [[]], []

            def add_column(self, heading: str, justify: str = "left", **_: Any) -> None:
                self._rows[0].append(heading.replace("\n", " "))
                self._justified.append(str.rjust if justify == "right" else str.ljust)

            def add_row(self, *cells: str, style: str = "") -> None:
                self._rows.append(list(cells))

            def __str__(self) -> str:
                widths = [max(map(len, column)) for column in zip(*self._rows, strict=True)]
                lines = (zip(row, widths, self._justified, strict=True) for row in self._rows)
                shown = ["  ".join(justified(cell, width) for cell, width, justified in line) for line in lines]
                return "\n".join(line.rstrip() for line in [*filter(None, [self._title]), *shown])


__all__ = ["Console", "Grid", "Text", "box"]
