"""The table of presets, and one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import layerwise
from layerwise.cli.usage import one_of
from layerwise.presets import Preset
from layerwise.registry import ENTRIES

OPTIMIZERS = tuple(ENTRIES)


def _names() -> list[str]:
    return [*OPTIMIZERS, *(preset.name for preset in layerwise.presets())]


def command(
    name: Annotated[
        str | None, typer.Argument(help="One of them, or an optimizer.", **one_of("preset or optimizer", _names))
    ] = None,
) -> None:
    """List the named variants: what makes an optimizer equal to another implementation."""
    found = [one for one in layerwise.presets() if name in (None, one.name, one.optimizer)]
    if name is None or name in OPTIMIZERS:
        show_presets(Console(), found)
    else:
        show_preset(Console(), found[0])


def show_presets(console: Console, found: Sequence[Preset]) -> None:
    """Print a table on a terminal; elsewhere a line for each, so that grep finds whole rows."""
    if console.is_terminal:
        console.print(_table(found))
        console.print(Text('Use one as Lamb(lr=1e-3, **layerwise.preset("apex.FusedLAMB")).', style="dim"))
        return
    for preset in found:
        print(preset)


def show_preset(console: Console, preset: Preset) -> None:
    options = "".join(f", {name}={value!r}" for name, value in preset.options.items())
    lr = "" if "lr" in preset.options else "lr=…, "
    wide = not console.is_terminal
    console.print(Text(str(preset)), soft_wrap=wide)
    console.print(Text(f"{preset.optimizer}({lr}{options[2:]})"), soft_wrap=wide)


def _table(found: Sequence[Preset]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_lines=False, pad_edge=False)
    for heading in ("preset", "optimizer"):
        table.add_column(heading, no_wrap=True)
    table.add_column("how it differs from our defaults", ratio=3)
    table.add_column("not reproduced", ratio=2, style="dim")
    for preset in found:
        row = (preset.name, preset.optimizer, preset.differs, preset.not_reproduced)
        table.add_row(*map(Text, row))  # Text, because square brackets in a preset are not markup
    return table
