"""The list of presets, and the description of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

import layerwise
from layerwise.catalog.presets import Preset
from layerwise.catalog.registry import ENTRIES
from layerwise.cli.usage import one_of

OPTIMIZERS = tuple(ENTRIES)
EXAMPLES = ("apex.FusedLAMB", "timm.Lars")  # if listed


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
    """List the presets: options that make an optimizer equal to another implementation."""
    found = [one for one in layerwise.presets() if name in (None, one.name, one.optimizer)]
    if name is not None and name not in OPTIMIZERS:
        [preset] = found
        options = "".join(f", {name}={value!r}" for name, value in preset.options.items())
        lr = "" if "lr" in preset.options else "lr=…, "
        print(preset, f"{preset.optimizer}({lr}{options[2:]})", sep="\n")
    elif found:
        print(*found, example(found), sep="\n")
    else:
        print(f"{name} has no presets: its defaults are those of its paper.")


def example(found: Sequence[Preset]) -> str:
    """Return a line of Python that uses one of these presets, preferably one of another package."""
    one = min(found, key=lambda preset: (preset.name not in EXAMPLES, preset.name.startswith("paper.")))
    lr = "" if "lr" in one.options else ", lr=1e-3"
    return f'Use one as {one.optimizer}.like("{one.name}", model.parameters(){lr}).'
