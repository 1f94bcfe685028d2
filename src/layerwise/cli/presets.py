"""The table of presets, and one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

import layerwise
from layerwise.cli.rows import show_rows
from layerwise.cli.usage import one_of
from layerwise.registry import ENTRIES
from layerwise.variants import Preset

OPTIMIZERS = tuple(ENTRIES)
WIDE = 76  # columns; on fewer there is no room for a table
COLUMNS: dict[str, dict[str, Any]] = {
    "preset": {"no_wrap": True},
    "optimizer": {"no_wrap": True},
    "how it differs from our defaults": {"ratio": 3},
    "not reproduced": {"ratio": 2, "style": "dim"},
}
EXAMPLES = ("apex.FusedLAMB", "timm.Lars")  # where they are listed


def _names() -> list[str]:
    return [*OPTIMIZERS, *(preset.name for preset in layerwise.presets())]


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="One of them, or an optimizer.",
            **one_of("preset or optimizer", _names, "'layerwise presets' lists all of them."),
        ),
    ] = None,
) -> None:
    """List the named variants: what makes an optimizer equal to another implementation."""
    found = [one for one in layerwise.presets() if name in (None, one.name, one.optimizer)]
    if name is not None and name not in OPTIMIZERS:
        show_preset(Console(), found[0])
    elif found:
        show_presets(Console(), found)
    else:
        print(f"There are no presets of {name}: its defaults are those of its paper.")


def show_presets(console: Console, found: Sequence[Preset]) -> None:
    """Print a table on a terminal, or a list where that is narrow; elsewhere a line for each, so that grep finds it."""
    if not console.is_terminal:
        print(*found, sep="\n")
    else:
        each = ((one.name, one.optimizer, one.differs, one.not_reproduced) for one in found)
        show_rows(console, WIDE, COLUMNS, ((list(map(Text, cells)), "") for cells in each))
    console.print(Text(example(found), style="dim"), soft_wrap=True)


def example(found: Sequence[Preset]) -> str:
    """Return a line of Python that uses one of these presets, if possible one of another package."""
    one = min(found, key=lambda preset: (preset.name not in EXAMPLES, preset.name.startswith("paper.")))
    lr = "" if "lr" in one.options else ", lr=1e-3"
    return f'Use one as {one.optimizer}.like("{one.name}", model.parameters(){lr}).'


def show_preset(console: Console, preset: Preset) -> None:
    options = "".join(f", {name}={value!r}" for name, value in preset.options.items())
    lr = "" if "lr" in preset.options else "lr=…, "
    wide = not console.is_terminal
    console.print(Text(str(preset)), soft_wrap=wide)
    console.print(Text(f"{preset.optimizer}({lr}{options[2:]})"), soft_wrap=wide)
