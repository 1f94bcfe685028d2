"""The report's pictures, as SVG that takes its colours from the page it is in."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from layerwise.cli.demo.outcome import Outcome
from layerwise.cli.demo.result import Result, Row
from layerwise.cli.demo.settings import Act, Case

# Colours that occur nowhere else; each becomes a variable of the page's style sheet, which has two sets of them.
INK, GRID, SERIES = "#010101", "#020202", tuple(f"#{i:02}{i:02}{i:02}" for i in range(3, 7))
VARIABLES = {INK: "--ink", GRID: "--grid", **{colour: f"--series{i}" for i, colour in enumerate(SERIES, 1)}}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
RIGHTMOST, APART = 8, 0.5  # bytes
WORDS = {"accuracy": "test accuracy, %", "loss": "test loss, nats"}
Draw = Callable[[Any], None]


def svg(name: str, title: str, draw: Draw, height: float = 3.1) -> str:
    """Return one picture, small enough for a telephone. `name` keeps its ids apart from those of the others."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(4.3, height))
        draw(figure.add_subplot())
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    return _for_the_page(drawn.getvalue(), name, title)


def _for_the_page(text: str, name: str, title: str) -> str:
    text = text[text.index("<svg") :]
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    return text.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)


def colour(act: Act, case: Case) -> str:
    """Return each contender's own, in the order of the act."""
    return SERIES[act.contenders.index(case.contender)]


def against_batch(result: Result, act: Act, metric: str) -> Draw:
    def draw(axes: Any) -> None:
        for contender in act.contenders:
            rows = [row for row in result.rows(act) if row.case.contender == contender and _values(row, metric)]
            scaled = [row for row in rows if not row.case.retuned]
            if scaled:
                _errorbar(axes, scaled, metric, colour(act, scaled[0].case), marker="o", label=contender.name)
            for row in rows[len(scaled) :]:
                _errorbar(
                    axes, [row], metric, colour(act, row.case), marker="o", mfc="none", ls="", label=row.case.name
                )
        axes.set_xscale("log", base=2)
        axes.set_xticks(act.batches, [f"{batch:,}" for batch in act.batches])
        axes.minorticks_off()
        axes.margins(x=0.1)
        axes.set(xlabel="batch size", ylabel=WORDS[metric])
        _legend(axes)

    return draw


def _values(row: Row, metric: str) -> list[float]:
    found = (getattr(o, metric) for o in row.outcomes)
    return [x for x in found if x is not None]


def _errorbar(axes: Any, rows: Sequence[Row], metric: str, colour: str, **options: Any) -> None:
    values = [_values(row, metric) for row in rows]
    means = [sum(v) / len(v) for v in values]
    spreads = [math.sqrt(sum((x - m) ** 2 for x in v) / len(v)) for v, m in zip(values, means, strict=True)]
    axes.errorbar([row.case.batch for row in rows], means, spreads, color=colour, capsize=3, **options)


def curves(result: Result, act: Act) -> Draw:
    """Return the drawing of the training batches' loss by epoch, of the first seed."""

    def draw(axes: Any) -> None:
        begun = [(row, _finite(row.outcomes[0].losses)) for row in result.rows(act) if row.outcomes]
        for row, points in begun:
            epochs = [step * act.task.epochs / row.case.steps for step, _ in points]
            style = ":" if row.case.retuned else "-" if row.case.batch == act.task.small else "--"
            losses = [loss for _, loss in points]
            axes.plot(epochs, losses, style, color=colour(act, row.case), lw=1.2, label=str(row.case))
        firsts = [points[0][1] for _, points in begun if points]
        if firsts:
            lowest, highest = min(loss for _, points in begun for _, loss in points), max(firsts)
            room = 0.1 * (highest - lowest)
            axes.set_ylim(lowest - room, highest + room)  # a loss that leaps would leave no room for the others
        axes.set(xlabel="epoch", ylabel="training loss, nats")
        _legend(axes)

    return draw


def _finite(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    return [point for point in points if math.isfinite(point[1])]


def ratios(outcome: Outcome) -> Draw:
    """Time to the right, layers from the first to the last, the ratio's logarithm as colour."""

    def draw(axes: Any) -> None:
        names = list(outcome.ratios[-1][1])
        values = [[_log(seen.get(name)) for _, seen in outcome.ratios] for name in names]
        last = outcome.ratios[-1][0]
        picture = axes.imshow(values, aspect="auto", interpolation="nearest", extent=(0, last, len(names) - 0.5, -0.5))
        axes.set_yticks(range(len(names)), names)
        axes.set(xlabel="step")
        axes.grid(visible=False)
        bar = axes.figure.colorbar(picture, ax=axes)
        bar.outline.set_visible(False)
        bar.ax.yaxis.set_major_formatter(lambda x, _: f"{10**x:.2g}")

    return draw


def _log(x: float | None) -> float:
    return math.log10(x) if x is not None and 0 < x < math.inf else math.nan


def against_memory(act: Act, rows: Sequence[Row]) -> Draw:
    """Return the drawing of the loss of every seed, by the bytes of weights and state; each contender has its name."""
    places = {row.case: (row.bytes_per_parameter or 0.0, row.mean) for row in rows if row.mean is not None}

    def draw(axes: Any) -> None:
        for row in rows:
            if row.case in places:
                (size, mean), own = places[row.case], colour(act, row.case)
                axes.plot([size] * len(row.figures), row.figures, "o", color=own, ms=3, alpha=0.6)
                axes.plot([size], [mean], "D", color=own, ms=6)
                beside = [y for x, y in places.values() if y is not None and abs(x - size) < APART]
                axes.annotate(row.case.name, (size, mean), color=own, **_beside(size, mean, beside))
        axes.set_xlim(0, 13)
        axes.margins(y=0.12)
        axes.set(xlabel="bytes of weights and state for each parameter", ylabel=WORDS[act.task.metric])

    return draw


def _beside(size: float, mean: float | None, all_there: Sequence[float]) -> dict[str, Any]:
    """Place a name to the right of its mark, at the right edge to the left; the lowest of several goes below it."""
    left = size > RIGHTMOST
    vertical = "center" if len(all_there) == 1 else "top" if mean == min(all_there) else "bottom"
    place = {"xytext": (-8 if left else 8, 0), "textcoords": "offset points"}
    return {**place, "ha": "right" if left else "left", "va": vertical}


def times(rows: Sequence[Row]) -> Draw:
    def draw(axes: Any) -> None:
        names = [str(row.case) for row in rows]
        measured = [row.milliseconds or (math.nan, math.nan) for row in rows]
        axes.barh(names, [whole for whole, _ in measured], color=GRID, height=0.7, label="the whole step")
        axes.barh(names, [part for _, part in measured], color=SERIES[0], height=0.7, label="of it the optimizer")
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.grid(visible=False, axis="y")
        axes.set_xlim(left=0.1)
        axes.set(xlabel="milliseconds")
        axes.figure.legend(loc="outside upper left", ncols=2, fontsize=8)

    return draw


def _legend(axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.figure.legend(loc="outside upper left", ncols=2, fontsize=8)
