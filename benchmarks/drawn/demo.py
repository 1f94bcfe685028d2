"""The demo's three acts, drawn as its report draws them."""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.figure import Figure

import checkout  # noqa: F401
from demo import figures
from demo.result import Result
from demo.settings import ACTS, MUON_SMALL
from drawn.style import SMALL, TEXT, THEMES, Drawing, Theme, lettered, source
from full_demo import TABLE, read
from full_demo import demo as demo_result

SERIES = {  # one for each optimizer of the demo
    "light": ("#bc4c00", "#0969da", "#1a7f37", "#8250df", "#bf3989", "#1b7c83"),
    "dark": ("#f0883e", "#4493f8", "#3fb950", "#ab7df8", "#f778ba", "#39c5cf"),
}
NOTE = "Small networks; each optimizer was tuned at each batch. Strokes are seeds, marks their means. "


def demo(figure: Figure, theme: Theme) -> None:
    """Draw a panel for each act."""
    series = SERIES["light" if theme is THEMES["light"] else "dark"]
    palette = figures.Palette(theme["ink"], theme["quiet"], theme["line"], series, TEXT, SMALL)
    result, row = read(demo_result())
    with mpl.rc_context(palette.style()):
        for axes, act in zip(figure.subplots(len(ACTS), 1, height_ratios=(1, 0.9, 1.2)), ACTS, strict=True):
            figures.of_act(result, act)[0](axes, palette)
        lettered(figure, theme, finding(result), NOTE + source(TABLE.name, row, "torch"))


def finding(result: Result) -> str:
    """Return what the three acts say, in the figures that their marks show."""
    digits, text, memory = ({row.case.name: row.brief for row in result.last(act)} for act in result.acts)
    kept = {row.case.name: row.bytes or 0.0 for row in result.last(result.acts[2])}
    small = MUON_SMALL.name
    return (
        f"LARS {digits['LARS']} where SGD ends at {digits['SGD']}; Muon {text['Muon + AdamW']}, LAMB {text['LAMB']}, "
        f"AdamW {text['AdamW']}; {memory[small]} in {kept[small]:.1f} bytes a parameter, not {kept['AdamW']:.0f}"
    )


DEMO = Drawing(demo, 8.2)
