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
TITLE = "A large batch, and each optimizer tuned for it"
LEFT = -0.28  # of the axes: where names begin
NOTE = "Small networks. Strokes are seeds, marks their means. "


def demo(figure: Figure, theme: Theme) -> None:
    """Draw a panel for each act, below what it found."""
    series = SERIES["light" if theme is THEMES["light"] else "dark"]
    palette = figures.Palette(theme["ink"], theme["quiet"], theme["line"], series, TEXT, SMALL)
    result, row = read(demo_result())
    with mpl.rc_context(palette.style()):
        panels = zip(figure.subplots(len(ACTS), 1, height_ratios=(1.1, 0.9, 1.1)), ACTS, findings(result), strict=True)
        for axes, act, found in panels:
            figures.of_act(result, act)[0](axes, palette)
            axes.set_title(found, loc="left", x=LEFT, pad=22 if axes.get_legend() else 6, fontsize=TEXT, weight="bold")
        lettered(figure, theme, TITLE, NOTE + source(TABLE.name, row, "torch"))


def findings(result: Result) -> tuple[str, str, str]:
    """Return what each act says, in the figures that its marks show."""
    digits, text, memory = ({row.case.name: row.brief for row in result.last(act)} for act in result.acts)
    kept = {row.case.name: row.bytes or 0.0 for row in result.last(result.acts[2])}
    small = MUON_SMALL.name
    return (
        f"Digits, batch 32 to 1,024: LARS {digits['LARS']}, SGD {digits['SGD']}",
        f"Text, batch 128: Muon {text['Muon + AdamW']}, LAMB {text['LAMB']}, AdamW {text['AdamW']}",
        f"In fewer bytes: Muon {memory[small]} in {kept[small]:.1f}, AdamW {memory['AdamW']} in {kept['AdamW']:.0f}",
    )


DEMO = Drawing(demo, 7.6)
