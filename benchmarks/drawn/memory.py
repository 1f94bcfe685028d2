"""Bytes a parameter of weights, state and gradients, and the peak of a training step."""

from __future__ import annotations

from matplotlib.figure import Figure

from drawn.style import TEXT, Drawing, Theme, bare, beside, latest, lettered, source

TABLE = "memory.csv"
PARTS = ("weights", "state", "gradients")
FROM, TO = "AdamW of torch, float32", "LAMB, 24 bits, 8-bit state, released"


def memory(figure: Figure, theme: Theme) -> None:
    """Draw stacked bars, largest first, each under its name."""
    found = latest(TABLE, "row")
    rows = sorted(found.values(), key=lambda row: -sum(float(row[part]) for part in PARTS))
    axes = bare(figure.add_subplot(), theme)
    axes.set_yticks([])
    widest = 0.0
    for y, row in enumerate(rows):
        left = 0.0
        for part, colour in zip(PARTS, theme["parts"], strict=True):
            axes.barh(y, float(row[part]), left=left, color=colour, label=part if y == 0 else None, height=0.4)
            left += float(row[part])
        widest = max(widest, left)
        name = row["row"].replace("released", "gradients released")
        axes.text(0, y - 0.4, name, va="center", color=theme["ink"], fontsize=TEXT)
        beside(axes, left, y, f"{left:.1f} bytes, peak {int(row['peak_mib']):,} MiB", theme["quiet"])
    axes.set(xlim=(0, widest * 1.5), ylim=(len(rows) - 0.7, -0.75))
    axes.legend(loc="lower right", frameon=False, labelcolor=theme["ink"], fontsize=TEXT)
    lettered(
        figure,
        theme,
        f"LAMB trains in {int(found[TO]['peak_mib']):,} MiB where AdamW in float32 takes "
        f"{int(found[FROM]['peak_mib']):,}",
        "Bytes a parameter on the shapes of BERT-base, and the peak memory of training a transformer of that size. "
        "Gradients released: each is freed during the backward pass, as soon as its parameter was stepped. "
        + source(TABLE, rows[0], "torch"),
    )


MEMORY = Drawing(memory, 6.6)
