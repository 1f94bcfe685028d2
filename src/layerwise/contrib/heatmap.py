"""Pictures of a monitor's records."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from layerwise.contrib.monitor import Monitor
from layerwise.contrib.records import rows_of
from layerwise.errors import HyperparameterError, MissingPackageError, sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LABELS = 60
WAY_OUT = "Pass a table that monitor(optimizer, path) wrote, or the monitor itself."


def heatmap(source: str | os.PathLike[str] | Monitor, path: str | os.PathLike[str] | None = None) -> Figure:
    """Return a figure of the trust ratios of all layers over time; for blocks, their median.

    Args:
        source: A monitor, or the CSV file that it writes.
        path: A file to which the figure is saved as well.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError("heatmap needs matplotlib: pip install matplotlib") from None
    steps, names, ratios = _ratios(_table(source))
    figure = Figure(figsize=(9, 1.5 + 0.22 * min(len(names), MOST_LABELS)), layout="constrained")
    _draw(figure, steps, names, ratios)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _table(source: object) -> Path:
    found = source.path if isinstance(source, Monitor) else source
    if not isinstance(found, (str, os.PathLike)):
        raise HyperparameterError(sentence("source", "a CSV file or a monitor that writes one", source, WAY_OUT))
    if not Path(found).exists():
        raise HyperparameterError(f"there is no file {str(found)!r}. {WAY_OUT}")
    return Path(found)


def _ratios(table: Path) -> tuple[list[int], list[str], np.ndarray]:
    """Return the steps, the layers from the first to the last, and an array of their ratios."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows_of(table, "the path of one, or the monitor itself"):
        found.setdefault(row["name"], {}).setdefault(int(row["step"]), []).append(float(row["trust_ratio"]))
    if not found:
        raise HyperparameterError(sentence("source", "a table with rows", str(table), "Take a step first."))
    steps = sorted({step for ratios in found.values() for step in ratios})
    ratios = [[np.median(one[step]) if step in one else np.nan for step in steps] for one in found.values()]
    return steps, list(found), np.array(ratios)


def _draw(figure: Figure, steps: list[int], names: list[str], ratios: np.ndarray) -> None:
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import MaxNLocator

    seen = np.ma.masked_where(~(np.isfinite(ratios) & (ratios > 0)), ratios)
    low, high = (seen.min(), seen.max()) if seen.count() else (1.0, 1.0)
    norm = LogNorm(low, high) if low < high else LogNorm(low / 2, high * 2)
    axes = figure.add_subplot(facecolor="lightgrey")
    image = axes.pcolormesh(steps, range(len(names)), seen, norm=norm, cmap="viridis", shading="nearest")
    shown = range(0, len(names), -(-len(names) // MOST_LABELS))
    axes.set_yticks(shown, [names[i] for i in shown], fontsize="small")
    axes.invert_yaxis()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    figure.colorbar(image, ax=axes, label="trust ratio")
