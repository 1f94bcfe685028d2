"""The order of calls of an offloaded step, as `tests/offload/calls.py` writes it."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from drawn.style import SMALL, TEXT, Drawing, Theme, bare, lettered
from rows import read

CALLS = Path(__file__).with_suffix(".csv")
LANES = ("copy out", "measure", "step", "copy back")


def offload(figure: Figure, theme: Theme) -> None:
    """Draw a box for each call, with the number of its layer: later ones to the right, each kind in its lane."""
    rows, axes = read(CALLS), bare(figure.subplots(), theme)
    work = theme["parts"][-1]
    colours = "none", work, work, "none"
    for x, row in enumerate(rows):
        lane = LANES.index(row["call"])
        axes.barh(lane, 0.9, left=x + 0.05, height=0.7, color=colours[lane], edgecolor=theme["quiet"])
        axes.text(x + 0.5, lane, row["layer"], ha="center", va="center", color=theme["ink"], fontsize=TEXT)
    first = next(x for x, row in enumerate(rows) if row["during"] == "step()")
    axes.axvline(first, color=theme["line"])
    for x, during in ((0, "backward()"), (first, "step()")):
        axes.text(x + 0.1, -0.75, during, color=theme["quiet"], fontsize=SMALL)
    axes.set_yticks(range(len(LANES)), LANES)
    axes.set(xlim=(0, len(rows)), ylim=(len(LANES) - 0.5, -1.1))
    lettered(
        figure,
        theme,
        "Gradients are measured as they arrive, and weights return while others step",
        "Six layers, of which the ring has room for four gradients, on the device of the tests: an order of calls from "
        "left to right, and no measurement. Layers 1 and 2 are measured as they step.",
    )


OFFLOAD = Drawing(offload, 2.9)
