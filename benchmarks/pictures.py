"""Draw the pictures of README and docs from the rows under benchmarks/results, each for light and for dark."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from rows import RESULTS

PICTURES = Path(__file__).parent.parent / "docs" / "assets"
THEMES = {
    "light": {"ink": "#1f2328", "quiet": "#8b949e", "parts": ("#1f6feb", "#8250df", "#d0d7de")},
    "dark": {"ink": "#e6edf3", "quiet": "#7d8590", "parts": ("#4c9aff", "#a371f7", "#3d444d")},
}
Row = Mapping[str, str]


def latest(table: str, key: str, **only: str) -> dict[str, Row]:
    """Return the last row of each kind, in the order in which the last run had them, of rows with these values."""
    with (RESULTS / table).open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if only.items() <= row.items()]
    found = {row[key]: row for row in rows}
    return dict(sorted(found.items(), key=lambda one: rows.index(one[1])))


def bare(figure: Figure, theme: Mapping[str, Any]) -> Any:
    """Return axes without a frame, in the colours of a theme."""
    axes = figure.add_subplot()
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=theme["ink"], labelsize=10)
    axes.set_xticks([])
    return axes


def memory(figure: Figure, theme: Mapping[str, Any]) -> None:
    """Draw bytes a parameter as stacked bars: weights, state, and gradients at one time."""
    rows = list(latest("memory.csv", "row").values())[::-1]
    axes, left = bare(figure, theme), [0.0] * len(rows)
    for part, colour in zip(("weights", "state", "gradients"), theme["parts"], strict=True):
        widths = [float(row[part]) for row in rows]
        axes.barh([row["row"] for row in rows], widths, left=left, color=colour, label=part, height=0.68)
        left = [x + width for x, width in zip(left, widths, strict=True)]
    for y, (total, row) in enumerate(zip(left, rows, strict=True)):
        peak = f"   (step: {int(row['peak_mib']):,} MiB)" if row["peak_mib"] else ""
        axes.text(total + 0.15, y, f"{total:.1f} bytes{peak}", va="center", color=theme["ink"], fontsize=10)
    axes.set_xlim(0, max(left) * 1.3)
    axes.legend(loc="lower right", frameon=False, labelcolor=theme["ink"], fontsize=10)
    axes.set_title("Bytes a parameter", loc="left", color=theme["ink"], fontsize=12, fontweight="bold")


DRAWINGS: Mapping[str, tuple[Callable[[Figure, Mapping[str, Any]], None], tuple[float, float]]] = {
    "memory": (memory, (9.5, 4.2)),
}


def draw(names: Sequence[str] = tuple(DRAWINGS), folder: Path = PICTURES) -> None:
    """Draw these pictures; the same rows give the same bytes."""
    settings = {"svg.hashsalt": "layerwise", "svg.fonttype": "none", "font.family": "sans-serif"}
    for name in names:
        drawing, size = DRAWINGS[name]
        for title, theme in THEMES.items():
            with mpl.rc_context(settings):
                figure = Figure(figsize=size, layout="constrained")
                drawing(figure, theme)
                figure.savefig(folder / f"{name}-{title}.svg", transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    draw()
