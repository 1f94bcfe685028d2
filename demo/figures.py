"""The demo's pictures: drawings on axes, in whatever colours, and as SVG that takes its colours from a page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from demo.result import Outcome, Result, Row
from demo.settings import Act, Case


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
        off = ("axes.spines.top", "axes.spines.right", "axes.spines.left", "ytick.left", "legend.frameon")
        on = ("axes.grid", "axes.axisbelow", "figure.constrained_layout.use")
        ink = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
        return {
            **dict.fromkeys(off, False),
            **dict.fromkeys(on, True),
            **dict.fromkeys(ink, self.ink),
            **dict.fromkeys(("axes.edgecolor", "grid.color"), self.grid),
            **dict.fromkeys(("font.size", "xtick.labelsize", "ytick.labelsize"), self.text),
            "legend.fontsize": self.small,
            "grid.linewidth": 0.6,
            "svg.fonttype": "none",
            "font.family": "sans-serif",
        }

    def of(self, name: str) -> str:
        return self.series[SERIES.index(name.removeprefix("8-bit ").removeprefix("bf16 "))]

    def beside(self, x: float = 0, y: float = 0) -> dict[str, Any]:
        """Return how small text is placed so many points away."""
        return {"xytext": (x, y), "textcoords": "offset points", "fontsize": self.small}


# Colours that occur nowhere else; each becomes a variable of the page's style sheet, which has two sets of them.
PAGE = Palette("#010101", "#020202", "#030303", tuple(f"#{i:02}{i:02}{i:02}" for i in range(4, 10)))
VARIABLES = {PAGE.ink: "--ink", PAGE.quiet: "--faint", PAGE.grid: "--grid"}
VARIABLES |= {colour: f"--series{i}" for i, colour in enumerate(PAGE.series, 1)}
NAME = 5  # bytes a parameter that a name is wide
SERIES = ("SGD", "AdamW", "LARS", "LAMB", "Muon + AdamW", "Adafactor")  # the same colours in all acts
# By how many rows above or below the contender's name, how it is marked, and its line.
KINDS: dict[str, tuple[float, dict[str, Any], str]] = {
    "small batch": (-0.2, {"marker": "o", "mfc": "none"}, "--"),
    "large batch": (0.2, {"marker": "D", "ms": 5}, "-"),
}
Draw = Callable[[Any, Palette], None]


def svg(name: str, title: str, draw: Draw, height: float = 3.1) -> str:
    """Return one picture, small enough for a telephone. `name` keeps its ids apart from those of the others."""
    drawn = io.StringIO()
    with mpl.rc_context({**PAGE.style(), "svg.hashsalt": name}):
        figure = Figure(figsize=(4.6, height))
        draw(figure.add_subplot(), PAGE)
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    text = drawn.getvalue().partition("<svg")[2]
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    return f'<svg role="img" aria-label="{title}"{text}'


def kind_of(case: Case) -> tuple[float, dict[str, Any], str]:
    small, large = KINDS.values()
    return large if case.retuned else small


def of_act(result: Result, act: Act) -> tuple[Draw, float]:
    """Return the drawing of an act, and its height: losses by bytes where these differ, else a mark for each row."""
    rows = [row for row in result.rows(act) if row.outcomes]
    if any(one.of for one in act.contenders):
        return against_memory(rows, act), 3.1
    return dots(rows, act), 3.1


def dots(rows: Sequence[Row], act: Act) -> Draw:
    """Return the drawing of a mark for each row and seed, one contender below the other."""

    def draw(axes: Any, palette: Palette) -> None:
        for row in rows:
            offset, marker, _ = kind_of(row.case)
            y = act.contenders.index(row.case.contender) + offset * (len(act.batches) - 1)
            _dots_of(axes, row, y, palette, marker)
        _axis_of_contenders(axes, act, palette)
        axes.margins(x=0.22)
        axes.set_xlabel(f"{act.task.figure} ({'right' if act.task.metric == 'accuracy' else 'left'} is better)")
        if len(act.batches) > 1:
            keys = [Line2D([], [], ls="", color=palette.ink, label=f"batch {batch:,}", **mark)
                    for batch, (_, mark, _) in zip(act.batches, KINDS.values(), strict=True)]  # fmt: skip
            axes.legend(handles=keys, handletextpad=0.2, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)

    return draw


def _dots_of(axes: Any, row: Row, y: float, palette: Palette, marker: dict[str, Any]) -> None:
    """Mark each seed faintly and their mean, with its number; where seeds diverged, say so instead."""
    own = palette.of(row.case.name)
    axes.plot(row.figures, [y] * len(row.figures), "|", color=own, ms=7, alpha=0.8)
    if row.diverged:
        place = {"xycoords": axes.get_yaxis_transform(), "fontsize": palette.small, "va": "center"}
        axes.annotate(f"✕ {row}", (0.02, y), color=own, **place)
    elif row.mean is not None:
        axes.plot([row.mean], [y], color=own, **{"ms": 6, **marker})
        axes.annotate(row.brief, (max(*row.figures, row.mean), y), va="center", **palette.beside(7))


def _axis_of_contenders(axes: Any, act: Act, palette: Palette) -> None:
    names = [contender.name for contender in act.contenders]
    axes.set_yticks(range(len(names)), names, fontweight="bold")
    for label, name in zip(axes.get_yticklabels(), names, strict=True):
        label.set_color(palette.of(name))
    axes.set_ylim(len(names) - 0.5, -0.62)
    axes.grid(visible=False, axis="y")
    for y in range(1, len(names)):
        axes.axhline(y - 0.5, color=palette.grid, lw=0.6)


# ---- curves and ratios


def curves(result: Result, act: Act) -> Draw:
    """Return the drawing of the training batches' loss by epoch, of the first seed."""

    def draw(axes: Any, palette: Palette) -> None:
        seen: list[float] = []
        firsts: list[float] = []
        for row in (row for row in result.rows(act) if row.outcomes):
            points = [(step * act.task.epochs / row.case.steps, loss) for step, loss in row.outcomes[0].losses]
            points = [point for point in points if math.isfinite(point[1])]
            own = palette.of(row.case.name)
            axes.plot(*zip(*points, strict=True) if points else ([], []), kind_of(row.case)[2], color=own, lw=1.2)
            if row.outcomes[0].diverged and points:
                axes.plot(*points[-1], "x", color=own, clip_on=False)
                axes.annotate("diverged", points[-1], color=own, annotation_clip=False, **palette.beside(4, 4))
            seen += [loss for _, loss in points]
            firsts += seen[-len(points) :][:1] if points else []
        if firsts:
            room = 0.1 * (max(firsts) - min(seen))
            axes.set_ylim(min(seen) - room, max(firsts) + room)  # a loss that leaps would leave no room for others
            axes.figure.legend(handles=_keys(act, palette), loc="outside upper left", ncols=2)
        axes.set(xlabel="epoch", ylabel="training loss, nats")

    return draw


def _keys(act: Act, palette: Palette) -> list[Line2D]:
    keys = [Line2D([], [], color=palette.of(one.name), lw=2.5, label=one.name) for one in act.contenders]
    if len(act.batches) > 1:
        keys += [
            Line2D([], [], color=palette.ink, lw=1.2, ls=style, label=kind) for kind, (_, _, style) in KINDS.items()
        ]
    return keys


def ratios(outcome: Outcome) -> Draw:
    """Return the drawing of time to the right, layers downwards, and the ratio's logarithm as colour."""

    def draw(axes: Any, palette: Palette) -> None:
        last, names = outcome.ratios[-1][0], list(outcome.ratios[-1][1])
        values = [[_log(seen.get(name)) for _, seen in outcome.ratios] for name in names]
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
            name, size, own = row.case.name, row.bytes or 0.0, palette.of(row.case.name)
            axes.plot([size] * len(row.figures), row.figures, "_", color=own, ms=9, alpha=0.8)
            axes.plot([size], [row.mean], "D", color=own, ms=6)
            (x, y), place, how = _place(row, there)
            axes.annotate(name, (x, y), color=own, weight="bold", **palette.beside(*place), **how)
        if diverged := ", ".join(row.case.name for row in rows if row.diverged):
            corner = {"xycoords": "axes fraction", "fontsize": palette.small, "va": "top"}
            axes.annotate(f"✕ diverged: {diverged}", (0.02, 0.98), **corner)
        axes.set_xlim(0, 14)
        axes.set_xticks(range(0, 13, 4))
        axes.margins(y=0.25)
        axes.set(xlabel="weights and state, B/param", ylabel=act.task.figure)

    return draw


def _place(row: Row, there: Sequence[Row]) -> tuple[tuple[float, float], tuple[float, float], dict[str, str]]:
    """Place a name above its mark, or below where the name of one with a little fewer bytes would reach it."""
    size = row.bytes or 0.0
    fewer = [other for other in there if 0 < size - (other.bytes or 0.0) < NAME]
    if len(fewer) % 2:
        return (size, min(row.figures)), (0, -7), {"ha": "center", "va": "top"}
    return (size, max(row.figures)), (0, 7), {"ha": "center", "va": "bottom"}
