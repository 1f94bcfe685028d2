"""The table of presets."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import layerwise


def show_presets(console: Console) -> None:
    """A table on a terminal; elsewhere a line for each, so that grep finds whole rows."""
    if console.is_terminal:
        console.print(_table())
        console.print(Text('Use one as Lamb(lr=1e-3, **layerwise.preset("apex.FusedLAMB")).', style="dim"))
        return
    for preset in layerwise.presets():
        print(preset)


def _table() -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_lines=False, pad_edge=False)
    for heading in ("preset", "optimizer"):
        table.add_column(heading, no_wrap=True)
    table.add_column("how it differs from our defaults", ratio=3)
    table.add_column("not reproduced", ratio=2, style="dim")
    for preset in layerwise.presets():
        row = (preset.name, preset.optimizer, preset.differs, preset.not_reproduced)
        table.add_row(*map(Text, row))  # Text, because square brackets in a preset are not markup
    return table
