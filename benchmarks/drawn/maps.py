"""The loss at the best learning rate by batch or width, a line for each optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from drawn.style import TEXT, Drawing, Theme, beside, lettered, source
from rows import read
from scaling import FOUND, SEEDS, losses

Map = Mapping[int, Mapping[float, float]]


def lines(name: str, height: float) -> Drawing:
    """Return the drawing of a map of scaling.py: of each optimizer the best loss, and how a wrong rate changes it."""

    def draw(figure: Figure, theme: Theme) -> None:
        found, axes = losses(name), figure.subplots()
        colours = dict(zip(found, theme["five"], strict=False))
        ends = {optimizer: _line(axes, rows, colours[optimizer]) for optimizer, rows in found.items()}
        _scales(axes, list(next(iter(found.values()))), name, theme)
        for optimizer, y in _apart(ends, axes).items():
            beside(axes, list(found[optimizer])[-1], y, optimizer, colours[optimizer], fontweight="bold", xytext=(7, 0))
        moved = ", ".join(f"{optimizer} {_moved(rows)}" for optimizer, rows in found.items())
        lettered(
            figure,
            theme,
            _finding(name, found, ends),
            f"Validation loss in nats at the best learning rate, mean of {len(SEEDS)} seeds. Bands reach to the worse "
            f"of half and twice that rate. From the first {name} to the last the best rate moves: {moved}. "
            + source(FOUND.name, read(FOUND, map=name)[-1], "torch"),
        )

    return Drawing(draw, height)


def _finding(name: str, found: Mapping[str, Map], ends: Mapping[str, float]) -> str:
    """Return which optimizer ends lowest, and where."""
    best = min(ends, key=ends.__getitem__)
    rest = [rows for optimizer, rows in found.items() if optimizer != best]
    least = all(min(row.values()) < min(other[place].values()) for place, row in found[best].items() for other in rest)
    return f"With the rate tuned at each {name}, {best} ends lowest at {'all' if least else 'the largest'}"


def _line(axes: Any, rows: Map, colour: str) -> float:
    """Draw one optimizer, and return where its line ends."""
    places = list(rows)
    best = [min(row.values()) for row in rows.values()]
    axes.plot(places, best, "o-", color=colour, lw=2, ms=5)
    axes.fill_between(places, best, [_beside_best(row) for row in rows.values()], color=colour, alpha=0.15, lw=0)
    return best[-1]


def _beside_best(row: Mapping[float, float]) -> float:
    """Return the worse loss of those at half and at twice the best rate, as far as the map goes."""
    rates = sorted(row)
    at = rates.index(min(row, key=row.__getitem__))
    return max(row[rate] for rate in rates[max(0, at - 1) : at + 2])


def _apart(ends: Mapping[str, float], axes: Any, least: float = 0.065) -> dict[str, float]:
    """Return where names stand so that none is on another: as high as their lines end, or above the one below."""
    low, high = axes.get_ylim()
    placed: dict[str, float] = {}
    floor = low
    for name in sorted(ends, key=ends.__getitem__):
        placed[name] = floor = max(ends[name], floor)
        floor += least * (high - low)
    return placed


def _scales(axes: Any, places: list[int], name: str, theme: Theme) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [f"{place:,}" for place in places])
    axes.set_xlim(places[0] * 0.9, places[-1] * (places[-1] / places[0]) ** 0.24)
    axes.minorticks_off()
    axes.set_xlabel(name, color=theme["ink"], fontsize=TEXT)
    axes.set_ylabel("validation loss", color=theme["ink"], fontsize=TEXT)
    axes.grid(axis="y", color=theme["line"], lw=0.6)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=theme["ink"], labelsize=TEXT)


def _moved(rows: Map) -> str:
    """Return how the best learning rate changes from the first row to the last."""
    best = [min(row, key=row.__getitem__) for row in rows.values()]
    factor = best[-1] / best[0]
    return f"× {factor:.2g}" if factor >= 1 else f"÷ {1 / factor:.2g}"


BATCHES, WIDTHS = lines("batch", 4.6), lines("width", 4.6)
