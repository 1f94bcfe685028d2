"""Step on sharded parameters: messages and time beside timm's LAMB."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from drawn.style import TEXT, Drawing, Row, Theme, bare, beside, latest, lettered, source, times

TABLE, RANKS, TENSORS = "sharding.csv", 2, 200
SHOWN = {
    "layerwise.torch.Lamb": "layerwise LAMB",
    "layerwise.torch.Lars": "layerwise LARS",
    "layerwise.torch.Adafactor": "layerwise Adafactor",
    "timm.Lamb": "timm LAMB",
    "torch.optim.AdamW, fused": "PyTorch AdamW, fused",
}
OURS, OTHER = "layerwise.torch.Lamb", "timm.Lamb"


def sharded(figure: Figure, theme: Theme) -> None:
    """Draw collectives of a step above, milliseconds below."""
    found = latest(TABLE, "implementation", ranks=str(RANKS), tensors=str(TENSORS))
    sent, ms = figure.subplots(2, 1)
    counts = {name: float(found[name]["collectives"]) for name in SHOWN}
    milliseconds = {name: float(found[name]["median_ms"]) for name in SHOWN}
    ratio = milliseconds[OTHER] / milliseconds[OURS]
    _bars(sent, theme, "collectives in one step", counts, lambda name: f"{counts[name]:.0f}")
    _bars(
        ms,
        theme,
        "milliseconds for one step",
        milliseconds,
        lambda name: (
            f"{milliseconds[name]:.{0 if milliseconds[name] > 100 else 1}f} ms"
            + (f", {times(ratio)}" if name == OTHER else "")
        ),
    )
    lettered(
        figure,
        theme,
        f"Sharded over processes, LAMB sends {_messages(found[OURS])} where timm's sends {found[OTHER]['collectives']}",
        f"{TENSORS} small tensors under FSDP2, {RANKS} processes on one machine with Gloo: the cost of the step on the "
        "host. AdamW needs no sums and sends nothing. " + source(TABLE, found[OTHER], "torch", "timm"),
    )


def _messages(row: Row) -> str:
    return "one message" if row["collectives"] == "1" else f"{row['collectives']} messages"


def _bars(axes: Any, theme: Theme, heading: str, values: dict[str, float], said: Any) -> None:
    bare(axes, theme)
    for y, (name, value) in enumerate(values.items()):
        ours = name.startswith("layerwise")
        axes.barh(y, value, color=theme["ours" if ours else "others"], height=0.7)
        beside(axes, value, y, said(name), theme["ink"], fontweight="bold" if ours else "normal")
    axes.set(xlim=(0, max(values.values()) * 1.32), ylim=(len(values) - 0.5, -0.5))
    axes.set_yticks(range(len(values)), [SHOWN[name] for name in values])
    axes.set_title(heading, loc="left", color=theme["ink"], fontsize=TEXT, fontweight="bold")


SHARDED = Drawing(sharded, 4.5)
