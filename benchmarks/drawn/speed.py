"""Step time on a CPU beside other packages' LAMB, LARS and Adafactor."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from drawn.style import (
    PACKAGES,
    SMALL,
    TEXT,
    Drawing,
    Row,
    Theme,
    bare,
    beside,
    last_run,
    lettered,
    rows_of,
    source,
    times,
)

TABLE, SHAPES = "cpu_engine.csv", "bert-base"
NAMES = {"Lamb": "LAMB", "Lars": "LARS", "Adafactor": "Adafactor"}
SCALE = "torch.optim.Adam, fused"
# Also bitsandbytes, whose LAMB and LARS are other algorithms.
SKIPPED = ("layerwise", "engine", "torch.optim.Adam,", "torch.optim.AdamW", "torch.optim.SGD", "bitsandbytes")


class Bar(NamedTuple):
    """One implementation's step, over ours that ran in turns with it."""

    label: str
    ratio: float


class Group(NamedTuple):
    """One optimizer: ours first, then the fastest variant of each package; and the ratio that is drawn for scale."""

    name: str
    ms: float  # of our step
    bars: list[Bar]
    scale: float


def groups() -> list[Group]:
    """Return what the last run of each optimizer found."""
    return [group_of(last_run(rows_of(TABLE, table="table", shapes=SHAPES, optimizer=name))) for name in NAMES]


def group_of(rows: list[Row]) -> Group:
    ours = statistics.median(float(row["median_ms"]) for row in rows if row["ratio"] == "1.0")
    [scale] = [float(row["ratio"]) for row in rows if row["implementation"] == SCALE]
    found: dict[str, Bar] = {}
    for row in rows:
        if not row["implementation"].startswith(SKIPPED):
            package = row["implementation"].partition(".")[0]
            bar = Bar(PACKAGES[package], float(row["ratio"]))
            found[package] = min(bar, found.get(package, bar), key=lambda one: one.ratio)
    others = sorted(found.values(), key=lambda one: one.ratio)
    return Group(NAMES[rows[0]["optimizer"]], ours, [Bar("layerwise", 1.0), *others], scale)


def speed(figure: Figure, theme: Theme) -> None:
    """Draw a bar for each package, the ratio written at it."""
    found, origin = groups(), rows_of(TABLE, table="table", shapes=SHAPES)[-1]
    axes, y = bare(figure.add_subplot(), theme), 0.0
    labels: dict[float, str] = {}
    for group in found:
        axes.text(0, y - 0.15, group.name, color=theme["ink"], fontsize=TEXT, fontweight="bold", va="center")
        for bar in group.bars:
            y += 1
            labels[y] = bar.label
            _bar(axes, y, bar, group, theme)
        axes.plot(
            [group.scale * group.ms] * 2,
            [y - len(group.bars) + 0.5, y + 0.5],
            color=theme["ink"],
            ls=(0, (2, 2)),
            lw=1.2,
        )
        y += 1.35
    widest = max(bar.ratio * group.ms for group in found for bar in group.bars)
    right = max(found[0].scale * found[0].ms, 0.15 * widest)  # of the name of the first group
    beside(axes, right, -0.15, "dashed: PyTorch's fused Adam", theme["quiet"], xytext=(-3, 0), fontsize=SMALL)
    axes.set(xlim=(0, widest * 1.36), ylim=(y - 0.6, -0.6))
    axes.set_yticks(list(labels), list(labels.values()))
    ratios = [bar.ratio for group in found for bar in group.bars[1:]]
    lettered(
        figure,
        theme,
        f"On a CPU, other packages' LAMB, LARS and Adafactor take {min(ratios):.1f} to {max(ratios):.1f} times as long",
        "One step of BERT-base's 108.9 million float32 parameters: ours in milliseconds, others in times ours, which "
        f"ran in turns with each, on {origin['threads']} threads. The fastest variant of each package. "
        + source(TABLE, origin, "torch", "transformers", "timm", "pytorch_optimizer"),
    )


def _bar(axes: Any, y: float, bar: Bar, group: Group, theme: Theme) -> None:
    ours, width = bar.label == "layerwise", bar.ratio * group.ms
    axes.barh(y, width, color=theme["ours" if ours else "others"], height=0.74)
    said = f"{group.ms:.0f} ms" if ours else times(bar.ratio)
    beyond = max(width, group.scale * group.ms)  # so that the line for scale does not cross what is written
    beside(axes, beyond, y, said, theme["ink"], fontweight="bold" if ours else "normal")


SPEED = Drawing(speed, 5.3)
