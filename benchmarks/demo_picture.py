"""The picture of `layerwise demo` for README and docs, drawn from its committed rows as its report draws them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from demo import read
from layerwise.cli.demo import figures
from layerwise.cli.demo.settings import ACTS

COLOURS = {  # of the grid, and of the optimizers
    "light": ("#d0d7de", ("#b83b0a", "#1d6fb8", "#157a3c", "#7e22ce", "#be185d", "#0e7490")),
    "dark": ("#3d444d", ("#fb923c", "#60a5fa", "#4ade80", "#c084fc", "#f472b6", "#22d3ee")),
}
TITLES = ("LARS, batch 32 → 1,024", "LAMB, batch 8 → 128", "Loss against memory")


def draw(figure: Figure, theme: Mapping[str, Any]) -> None:
    """Draw a panel for each act: figures by batch for the first two, loss against memory for the third."""
    grid, series = COLOURS[theme["name"]]
    palette = figures.Palette(theme["ink"], theme["quiet"], grid, series)
    result, _ = read()
    with mpl.rc_context(palette.style()):
        for axes, act, title in zip(figure.subplots(1, 3, width_ratios=(1.15, 1, 1)), ACTS, TITLES, strict=True):
            drawing = figures.dots if act.grows else figures.against_memory
            drawing(result.rows(act), act)(axes, palette)
            axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
        figures.legend(figure, palette, columns=4)
