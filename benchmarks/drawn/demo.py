"""The demo: accuracy and loss by batch, and loss against memory, drawn as its report draws them."""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.figure import Figure

import checkout  # noqa: F401
from demo import figures
from demo.result import Result
from demo.settings import ACTS, Act
from drawn.style import SMALL, TEXT, THEMES, Drawing, Theme, lettered, source
from full_demo import TABLE, read

SERIES = {  # one for each optimizer of the demo
    "light": ("#bc4c00", "#0969da", "#1a7f37", "#8250df", "#bf3989", "#1b7c83"),
    "dark": ("#f0883e", "#4493f8", "#3fb950", "#ab7df8", "#f778ba", "#39c5cf"),
}
TITLES = ("digits, batch 32 → 1,024", "text, batch 8 → 128", "text, batch 8, by memory")
NOTE = (
    "Small networks; every optimizer was tuned with the same budget at both batches. A mark is the mean of 2 seeds at "
    "the small batch and of 3 at the large one. "
)


def demo(figure: Figure, theme: Theme) -> None:
    """Draw a panel for each act: figures by batch for the first two, loss against memory for the third."""
    series = SERIES["light" if theme is THEMES["light"] else "dark"]
    palette = figures.Palette(theme["ink"], theme["quiet"], theme["line"], series, TEXT, SMALL)
    result, row = read()
    with mpl.rc_context(palette.style()):
        panels = figure.subplot_mosaic(
            [["first", "first"], ["second", "third"]], height_ratios=(1.1, 1), width_ratios=(1, 1.15)
        )
        for axes, act, title in zip(panels.values(), ACTS, TITLES, strict=True):
            drawing = figures.dots if act.grows else figures.against_memory
            drawing(result.rows(act), act)(axes, palette)
            axes.set_title(title, loc="left", fontsize=TEXT, fontweight="bold")
        figures.legend(panels["first"], palette, loc="lower left", bbox_to_anchor=(0.16, 0.02))
        lettered(figure, theme, finding(result), NOTE + source(TABLE.name, row, "torch"))


def finding(result: Result) -> str:
    """Return what the re-tuned optimizers did at the large batch: differences of the figures that the marks show."""
    first, second, _ = result.acts

    def means(act: Act, batch: int, retuned: bool = False) -> dict[str, float]:
        return {row.case.contender.name: float(figures.shown(row)) for row in result.rows(act, batch, retuned)}

    small, large = means(first, first.task.small), means(first, first.task.large, retuned=True)
    lost = {name: f"{small[name] - large[name]:.1f}" for name in small}
    nats = means(second, second.task.large, retuned=True)
    return (
        f"Large batch: LARS loses {lost['LARS']} points, AdamW {lost['AdamW']}, SGD {lost['SGD']}; "
        f"LAMB ends {nats['AdamW'] - nats['LAMB']:.2f} nats below AdamW"
    )


DEMO = Drawing(demo, 6.4)
