"""Draw the pictures of README and docs from the rows under benchmarks/results, each for light and for dark."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from rows import RESULTS
from scaling import losses

PICTURES = Path(__file__).parent.parent / "docs" / "assets"
THEMES = {
    "light": {"ink": "#1f2328", "quiet": "#8b949e", "parts": ("#1f6feb", "#8250df", "#d0d7de")},
    "dark": {"ink": "#e6edf3", "quiet": "#7d8590", "parts": ("#4c9aff", "#a371f7", "#3d444d")},
}
Row = Mapping[str, str]
WORST = 0.6  # nats above the best of a map, where colours end


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


def heat(name: str) -> Callable[[Figure, Mapping[str, Any]], None]:
    """Return what draws a map of scaling.py: a panel for each optimizer, the best losses in frames."""

    def draw_maps(figure: Figure, theme: Mapping[str, Any]) -> None:
        found = losses(name)
        for axes, (optimizer, rows) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
            best = min(value for row in rows.values() for value in row.values())
            _map(axes, rows, best, theme)
            axes.set_title(optimizer, loc="left", color=theme["ink"], fontsize=12, fontweight="bold")
            axes.set_xlabel("learning rate", color=theme["ink"], fontsize=10)
        figure.axes[0].set_ylabel(name, color=theme["ink"], fontsize=10)

    return draw_maps


def _map(axes: Any, rows: Mapping[int, Mapping[float, float]], best: float, theme: Mapping[str, Any]) -> None:
    rates = list(next(iter(rows.values())))
    worse = [[min(row[lr] - best, WORST) for lr in rates] for row in rows.values()]
    axes.imshow(worse, cmap="viridis_r", vmin=0, vmax=WORST, aspect="auto")
    for y, row in enumerate(rows.values()):
        least = min(row.values())
        for x, lr in enumerate(rates):
            ink = "white" if row[lr] - best > WORST / 2 else "black"
            axes.text(x, y, f"{row[lr]:.2f}" if row[lr] < 100 else "–", ha="center", va="center", color=ink, fontsize=9)
            if row[lr] == least:
                axes.add_patch(Rectangle((x - 0.46, y - 0.44), 0.92, 0.88, fill=False, color="#d1242f", linewidth=2))
    axes.set_xticks(range(len(rates)), [f"{lr:.2g}" for lr in rates])
    axes.set_yticks(range(len(rows)), [f"{place:,}" for place in rows])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=theme["ink"], labelsize=9)


DRAWINGS: Mapping[str, tuple[Callable[[Figure, Mapping[str, Any]], None], tuple[float, float]]] = {
    "memory": (memory, (9.5, 4.2)),
    "scaling-batch": (heat("batch"), (11, 2.6)),
    "scaling-width": (heat("width"), (11, 3.0)),
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
