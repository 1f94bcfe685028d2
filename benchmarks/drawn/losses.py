"""Loss against memory: what fewer bytes for weights and state do to the loss of paired trainings."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from drawn.style import TEXT, Drawing, Theme, beside, lettered, source
from precision import CONTROL, FOUND, REFERENCE, Line, lines
from rows import read

NETWORKS = {"digits": "convolutional network on digits", "text": "transformer on text"}
LEAST = "split24 and int8 state"
MARKS = {"LAMB": "o", "LARS": "s", "Adafactor+momentum": "D"}


def losses(figure: Figure, theme: Theme) -> None:
    """Draw mean differences of the loss over bytes a parameter, with intervals of 90 %, a panel for each network."""
    rows = [row for row in read(FOUND) if row["optimizer"] in MARKS]
    found = lines(rows)
    for axes, (data, called) in zip(figure.subplots(len(NETWORKS), 1), NETWORKS.items(), strict=True):
        _panel(axes, theme, [line for line in found if line.data == data])
        axes.set_title(called, loc="left", color=theme["ink"], fontsize=TEXT, fontweight="bold")
    figure.axes[0].legend(loc="upper right", frameon=False, labelcolor=theme["ink"], fontsize=TEXT)
    figure.axes[-1].set_xlabel("bytes a parameter, weights and state", color=theme["ink"], fontsize=TEXT)
    by_bytes = {line.storage: line.bytes for line in found if (line.data, line.optimizer) == ("text", "LAMB")}
    seeds = len({row["seed"] for row in rows})
    lettered(
        figure,
        theme,
        f"LAMB keeps its loss in {by_bytes[LEAST]:.0f} bytes a parameter instead of {by_bytes[REFERENCE]:.0f}; "
        "weights rounded to nearest bfloat16 do not",
        f"Loss minus that of float32 with the same seed (0 is float32): mean of {seeds} seeds, and its 90 % interval. "
        "Rings mark 24-bit weights with 8-bit state, crosses bfloat16 weights rounded to nearest. The other points: "
        "16-bit weights rounded at random or split, state in 16 or 8 bits. "
        + source(FOUND.name, {key: str(value) for key, value in rows[-1].items()}, "torch"),
    )


def _panel(axes: Any, theme: Theme, found: list[Line]) -> None:
    axes.axhline(0, color=theme["line"], lw=1, zorder=0)
    for colour, (optimizer, mark) in zip(theme["series"], MARKS.items(), strict=True):
        for line in (one for one in found if one.optimizer == optimizer):
            _point(axes, theme, line, colour, mark)
        if any(line.optimizer == optimizer for line in found):
            label = optimizer.replace("+", " with ")
            axes.plot([], [], mark, color=colour, label=label, ls="")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(theme["line"])
    axes.tick_params(length=0, colors=theme["ink"], labelsize=TEXT)
    axes.set(xlim=(3.5, 12.6))
    axes.set_ylabel("loss, difference", color=theme["ink"], fontsize=TEXT)
    for line in (one for one in found if one.optimizer == "LAMB" and one.tested):
        _named(axes, theme, line)


def _point(axes: Any, theme: Theme, line: Line, colour: str, mark: str) -> None:
    tested = line.tested
    if tested is None:
        axes.plot(line.bytes, 0, mark, color=colour)
        return
    bad = line.storage == CONTROL
    axes.plot([line.bytes] * 2, [tested.low, tested.high], color=colour, lw=1.5)
    axes.plot(line.bytes, tested.mean, "X" if bad else mark, color=colour, ms=8 if bad else 6)
    if line.storage == LEAST:
        axes.plot(line.bytes, tested.mean, "o", mfc="none", mec=theme["ink"], ms=13, mew=1.3)


def _named(axes: Any, theme: Theme, line: Line) -> None:
    """Name the two ways to store that the picture is about."""
    if line.tested and line.storage == CONTROL:
        beside(axes, line.bytes, line.tested.mean, "rounded to nearest", theme["ink"], xytext=(9, 0))
    elif line.tested and line.storage == LEAST:
        said = "24-bit weights, 8-bit state"
        beside(axes, line.bytes, line.tested.mean, said, theme["ink"], xytext=(-6, 16))


LOSSES = Drawing(losses, 6.2)
