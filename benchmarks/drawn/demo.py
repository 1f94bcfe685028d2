"""The picture of `layerwise demo`, drawn from its committed rows as its report draws them."""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.figure import Figure

from demo import TABLE, read
from drawn.style import SETTINGS, TEXT, Drawing, Theme, lettered, source
from layerwise.cli.demo import figures
from layerwise.cli.demo.result import Result
from layerwise.cli.demo.settings import ACTS, Act

COLOURS = {  # of the optimizers, in the order of the demo
    "light": ("#b83b0a", "#1d6fb8", "#157a3c", "#7e22ce", "#be185d", "#0e7490"),
    "dark": ("#fb923c", "#60a5fa", "#4ade80", "#c084fc", "#f472b6", "#22d3ee"),
}
TITLES = ("LARS, batch 32 → 1,024", "LAMB, batch 8 → 128", "Loss against memory")
TEXT_ACT, LARGE = ACTS[1], "large batch, re-tuned"


def demo(figure: Figure, theme: Theme) -> None:
    """Draw a panel for each act: figures by batch for the first two, loss against memory for the third."""
    palette = figures.Palette(theme["ink"], theme["quiet"], theme["line"], COLOURS[theme["name"]])
    result, last = read()
    inner = figure.subfigures()  # below the title, with a legend of its own
    with mpl.rc_context({**palette.style(), **SETTINGS}):
        for axes, act, title in zip(inner.subplots(3, 1, height_ratios=(3, 2, 2.4)), ACTS, TITLES, strict=True):
            drawing = figures.dots if act.grows else figures.against_memory
            drawing(result.rows(act), act)(axes, palette)
            axes.set_title(title, loc="left", color=theme["ink"], fontsize=TEXT, fontweight="bold")
        figures.legend(inner, palette, columns=2)
        ours, theirs = (_at_the_large_batch(result, TEXT_ACT, name) for name in ("LAMB", "AdamW"))
        lettered(
            figure,
            theme,
            f"Tuned at batch {TEXT_ACT.task.large:,}, LAMB ends at a loss of {ours:.2f}, AdamW at {theirs:.2f}",
            f"Small networks on text and digits; each mark is a mean over seeds. {source(TABLE.name, last, 'torch')}",
        )


def _at_the_large_batch(result: Result, act: Act, name: str) -> float:
    """Return the mean of an optimizer that was tuned at the large batch."""
    rows = [row for row in result.rows(act) if figures.kind_of(row.case) == LARGE]
    [found] = [row.mean for row in rows if row.case.contender.name == name]
    return float(found or "nan")


DEMO = Drawing(demo, 7.4)
