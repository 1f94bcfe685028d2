"""The demo's pictures: drawings on axes, in whatever colours, and as SVG that takes its colours from a page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from layerwise.cli.demo.outcome import Outcome
from layerwise.cli.demo.result import Result, Row
from layerwise.cli.demo.settings import Act, Case


@dataclass(frozen=True)
class Palette:
    """Colours of a picture (text, what is said by the way, grid, each of `SERIES`), and its sizes of text."""

    ink: str
    quiet: str
    grid: str
    series: tuple[str, ...]
    text: float = 9  # points
    small: float = 8

    def style(self) -> dict[Any, Any]:
        """Return matplotlib's settings."""
        return {
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.size": self.text,
            "text.color": self.ink,
            "axes.labelcolor": self.ink,
            "axes.edgecolor": self.grid,
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.spines.left": False,
            "grid.color": self.grid,
            "grid.linewidth": 0.6,
            "xtick.color": self.ink,
            "ytick.color": self.ink,
            "ytick.left": False,
            "legend.frameon": False,
            "legend.fontsize": self.small,
            "xtick.labelsize": self.text,
            "ytick.labelsize": self.text,
            "figure.constrained_layout.use": True,
        }


# Colours that occur nowhere else; each becomes a variable of the page's style sheet, which has two sets of them.
PAGE = Palette("#010101", "#020202", "#030303", tuple(f"#{i:02}{i:02}{i:02}" for i in range(4, 10)))
VARIABLES = {PAGE.ink: "--ink", PAGE.quiet: "--faint", PAGE.grid: "--grid"}
VARIABLES |= {colour: f"--series{i}" for i, colour in enumerate(PAGE.series, 1)}
SERIES = ("SGD", "AdamW", "LARS", "LAMB", "LAMB 24+8", "Adafactor bf16")  # the same colours in all acts
WORDS = {"accuracy": "test accuracy, %", "loss": "test loss, nats"}
BETTER = {"accuracy": "(right is better)", "loss": "(left is better)"}
GUESSING = 10  # percent of ten digits
# By how many rows above or below the contender's name, and how it is marked.
KINDS: dict[str, tuple[float, dict[str, Any]]] = {
    "small batch": (-0.27, {"marker": "o"}),
    "large batch, settings scaled": (0.0, {"marker": "o", "mfc": "none"}),
    "large batch, re-tuned": (0.27, {"marker": "D", "ms": 5}),
}
LINES = dict(zip(KINDS, ("-", "--", ":"), strict=True))
Draw = Callable[[Any, Palette], None]


def svg(name: str, title: str, draw: Draw, height: float = 3.1) -> str:
    """Return one picture, small enough for a telephone. `name` keeps its ids apart from those of the others."""
    with mpl.rc_context({**PAGE.style(), "svg.hashsalt": name}):
        figure = Figure(figsize=(4.6, height))
        draw(figure.add_subplot(), PAGE)
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


def kind_of(case: Case) -> str:
    small, scaled, retuned = KINDS
    return retuned if case.retuned else small if case.batch == case.task.small else scaled


def colour(case: Case, palette: Palette) -> str:
    return palette.series[SERIES.index(case.contender.name)]


# ---- large batches


def dots(rows: Sequence[Row], act: Act) -> Draw:
    """Return the drawing of a mark for each row and seed, one contender below the other."""

    def draw(axes: Any, palette: Palette) -> None:
        for row in rows:
            offset, marker = KINDS[kind_of(row.case)]
            y, own = act.contenders.index(row.case.contender) + offset, colour(row.case, palette)
            _dots_of(axes, row, y, own, palette, marker)
        _axis_of_contenders(axes, act, palette)
        if act.task.metric == "accuracy":
            axes.set_xlim(0, 112)
            axes.set_xticks(range(0, 101, 20))
            axes.axvline(GUESSING, color=palette.quiet, lw=0.8, ls=":")
            near = {"xytext": (3, 0), "textcoords": "offset points", "va": "center", "fontsize": palette.small}
            axes.annotate("guessing", (GUESSING, -0.52), color=palette.quiet, **near)
        else:
            axes.margins(x=0.2)
        axes.set_xlabel(f"{WORDS[act.task.metric]} {BETTER[act.task.metric]}")

    return draw


def _dots_of(axes: Any, row: Row, y: float, own: str, palette: Palette, marker: dict[str, Any]) -> None:
    """Mark each seed faintly and their mean, with its number; where seeds diverged, say so instead."""
    axes.plot(row.figures, [y] * len(row.figures), "|", color=own, ms=7, alpha=0.8)
    if row.diverged:
        at = (0.02, y)
        text = "diverged" if row.diverged == len(row.outcomes) else f"{row.diverged} of {len(row.outcomes)} diverged"
        place = {"xycoords": axes.get_yaxis_transform(), "fontsize": palette.small, "va": "center"}
        axes.annotate(f"✕ {text}", at, color=own, **place)
    elif row.mean is not None:
        axes.plot([row.mean], [y], color=own, **{"ms": 6, **marker})
        beside = {"xytext": (7, 0), "textcoords": "offset points", "fontsize": palette.small}
        axes.annotate(_label(row, row.mean), (max(*row.figures, row.mean), y), va="center", **beside)


def _label(row: Row, mean: float) -> str:
    if row.case.task.metric == "loss":
        return f"{mean:.2f}"
    return f"{mean:.1f}" + (", no better than guessing" if mean <= 1.1 * GUESSING else "")


def _axis_of_contenders(axes: Any, act: Act, palette: Palette) -> None:
    names = [contender.name for contender in act.contenders]
    axes.set_yticks(range(len(names)), names, fontweight="bold")
    for label, name in zip(axes.get_yticklabels(), names, strict=True):
        label.set_color(palette.series[SERIES.index(name)])
    axes.set_ylim(len(names) - 0.5, -0.62)
    axes.grid(visible=False, axis="y")
    for y in range(1, len(names)):
        axes.axhline(y - 0.5, color=palette.grid, lw=0.6)


def with_kinds(draw: Draw) -> Draw:
    """Return the same drawing, with what its marks mean above it."""

    def drawn(axes: Any, palette: Palette) -> None:
        draw(axes, palette)
        legend(axes.figure, palette, loc="outside upper left", ncols=2)

    return drawn


def legend(host: Any, palette: Palette, **place: Any) -> None:
    """Say on a figure, or on its axes, what the marks mean."""
    marks = [
        Line2D([], [], ls="", color=palette.ink, label=kind, **{"ms": 6, **marker})
        for kind, (_, marker) in KINDS.items()
    ]
    each = Line2D([], [], ls="", color=palette.ink, marker="|", ms=7, label="one seed")
    host.legend(handles=[*marks, each], handletextpad=0.2, **place)


# ---- curves and ratios


def curves(result: Result, act: Act) -> Draw:
    """Return the drawing of the training batches' loss by epoch, of the first seed."""

    def draw(axes: Any, palette: Palette) -> None:
        begun = [(row, _finite(row.outcomes[0].losses)) for row in result.rows(act) if row.outcomes]
        for row, points in begun:
            epochs, losses = _by_epoch(act, row, points)
            own = colour(row.case, palette)
            axes.plot(epochs, losses, LINES[kind_of(row.case)], color=own, lw=1.2)
            if row.outcomes[0].diverged and points:
                axes.plot(epochs[-1:], losses[-1:], "x", color=own, clip_on=False)
                place = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": palette.small}
                axes.annotate("diverged", (epochs[-1], losses[-1]), color=own, annotation_clip=False, **place)
        firsts = [points[0][1] for _, points in begun if points]
        if firsts:
            lowest, highest = min(loss for _, points in begun for _, loss in points), max(firsts)
            room = 0.1 * (highest - lowest)
            axes.set_ylim(lowest - room, highest + room)  # a loss that leaps would leave no room for the others
        axes.set(xlabel="epoch", ylabel="training loss, nats")
        if begun:
            axes.figure.legend(handles=list(_keys(act, palette)), loc="outside upper left", ncols=2)

    return draw


def _by_epoch(act: Act, row: Row, points: Sequence[tuple[int, float]]) -> tuple[list[float], list[float]]:
    return [step * act.task.epochs / row.case.steps for step, _ in points], [loss for _, loss in points]


def _keys(act: Act, palette: Palette) -> Iterator[Line2D]:
    for contender in act.contenders:
        yield Line2D([], [], color=palette.series[SERIES.index(contender.name)], lw=2.5, label=contender.name)
    if act.grows:
        for kind, style in LINES.items():
            yield Line2D([], [], color=palette.ink, lw=1.2, ls=style, label=kind)


def _finite(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    return [point for point in points if math.isfinite(point[1])]


def ratios(outcome: Outcome) -> Draw:
    """Return the drawing of time to the right, layers downwards, and the ratio's logarithm as colour."""

    def draw(axes: Any, palette: Palette) -> None:
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


# ---- memory


def against_memory(rows: Sequence[Row], act: Act) -> Draw:
    """Return the drawing of the loss of every seed, by the bytes of weights and state; each contender has its name."""
    there = [row for row in rows if row.mean is not None]

    def draw(axes: Any, palette: Palette) -> None:
        for row in there:
            size, own = row.bytes_per_parameter or 0.0, colour(row.case, palette)
            axes.plot([size] * len(row.figures), row.figures, "_", color=own, ms=9, alpha=0.8)
            axes.plot([size], [row.mean], "D", color=own, ms=6)
            axes.annotate(row.case.name, color=own, weight="bold", size=palette.small, **_beside(row, there))
        _say_what_diverged(axes, palette, [row for row in rows if row.diverged])
        axes.set_xlim(0, 14)
        axes.set_xticks(range(0, 13, 4))
        axes.margins(y=0.25)
        axes.set(xlabel="weights and state, B/param", ylabel=f"{WORDS[act.task.metric]}")

    return draw


def _say_what_diverged(axes: Any, palette: Palette, rows: Sequence[Row]) -> None:
    if rows:
        text = "diverged: " + ", ".join(row.case.name for row in rows)
        axes.annotate(f"✕ {text}", (0.02, 0.98), xycoords="axes fraction", fontsize=palette.small, va="top")


def _beside(row: Row, all_there: Sequence[Row]) -> dict[str, Any]:
    """Place a name right of its mark; of several in as many bytes, above the highest and below the others."""
    size, mean = row.bytes_per_parameter or 0.0, row.mean or 0.0
    others = [o.mean or 0.0 for o in all_there if o is not row and abs((o.bytes_per_parameter or 0.0) - size) < 1]
    if not others:
        return {"xy": (size, mean), "xytext": (8, 0), "textcoords": "offset points", "ha": "left", "va": "center"}
    if mean > max(others):
        place: dict[str, Any] = {"xy": (size, max(row.figures)), "xytext": (0, 7), "va": "bottom"}
    else:
        place = {"xy": (size, min(row.figures)), "xytext": (0, -7), "va": "top"}
    return {**place, "textcoords": "offset points", "ha": "center"}


def bytes_kept(rows: Sequence[Row], act: Act) -> Draw:
    """Return the drawing of weights and state as bars from zero."""

    def draw(axes: Any, palette: Palette) -> None:
        for y, row in enumerate(rows):
            first, own = row.outcomes[0], colour(row.case, palette)
            weights, state = first.weight_bytes / first.parameters, first.state_bytes / first.parameters
            axes.barh(y, weights, color=own, height=0.6)
            axes.barh(y, state, left=weights, color=own, height=0.6, alpha=0.5)
            total = f"{weights + state:.2f}  ({weights:.2f} + {state:.2f})"
            beside = {"xytext": (5, 0), "textcoords": "offset points", "fontsize": palette.small}
            axes.annotate(total, (weights + state, y), va="center", **beside)
        _axis_of_contenders(axes, act, palette)
        axes.set_xlim(0, 18)
        axes.set_xticks(range(0, 13, 4))
        axes.set_xlabel("bytes a parameter: weights (solid) + state (faded)")

    return draw
