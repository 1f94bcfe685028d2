"""Style that all drawings share: colours for light and dark, sizes, a title that says the finding, a line of sources.

A picture is 600 pixels wide, so that its text can still be read where a page shows it at 420. Bars start at 0.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from rows import RESULTS, read

Row = Mapping[str, str]
Theme = Mapping[str, Any]
Draw = Callable[[Figure, Theme], None]

THEMES: Mapping[str, Theme] = {
    "light": {
        "ink": "#1f2328",
        "quiet": "#59636e",
        "line": "#d1d9e0",
        "ours": "#0969da",
        "others": "#afb8c1",
        "parts": ("#0969da", "#8250df", "#ced5dc"),
        "series": ("#0969da", "#bc4c00", "#8250df"),
        "five": ("#0969da", "#8250df", "#1b7c83", "#bc4c00", "#bf3989"),
        "bad": "#cf222e",
    },
    "dark": {
        "ink": "#e6edf3",
        "quiet": "#9198a1",
        "line": "#3d444d",
        "ours": "#4493f8",
        "others": "#59626c",
        "parts": ("#4493f8", "#ab7df8", "#484f58"),
        "series": ("#4493f8", "#f0883e", "#ab7df8"),
        "five": ("#4493f8", "#ab7df8", "#39c5cf", "#f0883e", "#f778ba"),
        "bad": "#ff7b72",
    },
}
WIDTH = 6.25  # inches: 600 pixels
TITLE, TEXT, SMALL = 12.5, 10.5, 8.5  # points
MEASURED, SHOWN = (
    "'DejaVu Sans'",
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial",
)  # wider than what is shown, so nothing overlaps
SETTINGS = {
    "svg.hashsalt": "layerwise",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": TEXT,
}
PACKAGES = {
    "torch": "PyTorch",
    "timm": "timm",
    "transformers": "transformers",
    "pytorch_optimizer": "pytorch_optimizer",
}


class Drawing(NamedTuple):
    """A function that draws, and the height in inches that it needs."""

    draw: Draw
    height: float


def rows_of(table: str, /, **only: str) -> list[Row]:
    """Return the rows of a table of results that have these values."""
    return read(RESULTS / table, **only)


def latest(table: str, key: str, /, **only: str) -> dict[str, Row]:
    """Return the last row of each kind, in the order in which the last run had them, of rows with these values."""
    rows = rows_of(table, **only)
    found = {row[key]: row for row in rows}
    return dict(sorted(found.items(), key=lambda one: rows.index(one[1])))


def last_run(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that were measured together with the last one."""
    return [row for row in rows if row["date"] == rows[-1]["date"]]


def source(table: str, row: Row, *packages: str) -> str:
    """Return where a picture's rows are, the machine they are from, and the versions that were compared."""
    machine = f"{row['cores']} cores of {row['cpu'].partition(' (')[0]}"
    versions = [f"{PACKAGES[name]} {row[name].partition('+')[0]}" for name in packages if row.get(name)]
    return ", ".join([f"benchmarks/results/{table}", row["date"][:10], machine, *versions]) + "."


def lettered(figure: Figure, theme: Theme, title: str, footer: str) -> None:
    """Write the finding above a drawing, and notes and sources below it."""
    figure.suptitle(textwrap.fill(title, 50), x=0.01, ha="left", color=theme["ink"], fontsize=TITLE, fontweight="bold")
    figure.supxlabel(textwrap.fill(footer, 84), x=0.01, ha="left", color=theme["quiet"], fontsize=SMALL)


def bare(axes: Any, theme: Theme) -> Any:
    """Return axes without a frame and without ticks, in the colours of a theme."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=theme["ink"], labelsize=TEXT)
    axes.set_xticks([])
    return axes


def beside(axes: Any, x: float, y: float, said: str, colour: str, **more: Any) -> None:
    """Write something to the right of a point, as of a bar's end."""
    at = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", **more}
    axes.annotate(said, (x, y), color=colour, **at)


def times(ratio: float) -> str:
    """Return a ratio as a reader says it."""
    return f"{ratio:.1f} ×" if ratio < 10 else f"{ratio:,.0f} ×"


def save(drawing: Drawing, theme: str, file: Path) -> None:
    """Write a drawing as SVG in the fonts of the reader's system; the same rows give the same bytes."""
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH, drawing.height), layout="constrained")
        drawing.draw(figure, THEMES[theme])
        figure.savefig(file, transparent=True, metadata={"Date": None, "Creator": None})
    file.write_text(file.read_text(encoding="utf-8").replace(MEASURED, SHOWN), encoding="utf-8")
