"""Maps of the loss by learning rate and by batch or width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from drawn.style import TEXT, Draw, Drawing, Theme, lettered, source
from rows import read
from scaling import FOUND, SEEDS, losses

WORST = 0.6  # nats above the best of a map, where colours end
FRAME = "#d1242f"
Map = Mapping[int, Mapping[float, float]]


def heat(name: str) -> Draw:
    """Return a function that draws a map of scaling.py: a panel for each optimizer, the best losses in frames."""

    def draw_maps(figure: Figure, theme: Theme) -> None:
        found = losses(name)
        for axes, (optimizer, rows) in zip(figure.subplots(len(found), 1), found.items(), strict=True):
            _map(axes, rows, theme)
            axes.set_title(optimizer, loc="left", color=theme["ink"], fontsize=TEXT, fontweight="bold")
            axes.set_ylabel(name, color=theme["ink"], fontsize=TEXT)
        figure.axes[-1].set_xlabel("learning rate", color=theme["ink"], fontsize=TEXT)
        first, *_, last = next(iter(found.values()))
        moved = ", ".join(f"{optimizer}'s {_moved(rows)}" for optimizer, rows in found.items())
        lettered(
            figure,
            theme,
            f"From {name} {first:,} to {last:,} the best learning rate moves: {moved}",
            f"Validation loss in nats, mean of {len(SEEDS)} seeds; the best of each {name} in a frame, – where a "
            "training diverged. " + source(FOUND.name, read(FOUND, map=name)[-1], "torch"),
        )

    return draw_maps


def _moved(rows: Map) -> str:
    """Return how the best learning rate changes from the first row to the last."""
    best = [min(row, key=row.__getitem__) for row in rows.values()]
    factor = best[-1] / best[0]
    return f"× {factor:.2g}" if factor >= 1 else f"÷ {1 / factor:.2g}"


def _map(axes: Any, rows: Map, theme: Theme) -> None:
    rates = list(next(iter(rows.values())))
    best = min(value for row in rows.values() for value in row.values())
    worse = [[min(row[lr] - best, WORST) for lr in rates] for row in rows.values()]
    axes.imshow(worse, cmap="viridis_r", vmin=0, vmax=WORST, aspect="auto")
    for y, row in enumerate(rows.values()):
        least = min(row.values())
        for x, lr in enumerate(rates):
            ink = "white" if row[lr] - best > WORST / 2 else "black"
            said = f"{row[lr]:.2f}" if row[lr] < 100 else "–"
            axes.text(x, y, said, ha="center", va="center", color=ink, fontsize=TEXT)
            if row[lr] == least:
                axes.add_patch(Rectangle((x - 0.46, y - 0.44), 0.92, 0.88, fill=False, color=FRAME, linewidth=2))
    axes.set_xticks(range(len(rates)), [f"{lr:.2g}" for lr in rates])
    axes.set_yticks(range(len(rows)), [f"{place:,}" for place in rows])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=theme["ink"], labelsize=TEXT)


BATCHES, WIDTHS = Drawing(heat("batch"), 8.6), Drawing(heat("width"), 6.6)
