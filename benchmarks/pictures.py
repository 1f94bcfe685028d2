"""Draw the pictures of README and docs from the rows that they show, each for light and for dark."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from drawn.demo import DEMO
from drawn.losses import LOSSES
from drawn.maps import BATCHES, WIDTHS
from drawn.memory import MEMORY
from drawn.offload import OFFLOAD
from drawn.sharded import SHARDED
from drawn.speed import SPEED
from drawn.style import THEMES, Drawing, save

PICTURES = Path(__file__).parent.parent / "docs" / "assets"
DRAWINGS: Mapping[str, Drawing] = {
    "speed": SPEED,
    "memory": MEMORY,
    "sharded": SHARDED,
    "offload": OFFLOAD,
    "losses": LOSSES,
    "scaling-batch": BATCHES,
    "scaling-width": WIDTHS,
    "demo": DEMO,
}


def draw(
    names: Sequence[str] = tuple(DRAWINGS), folder: Path = PICTURES, themes: Sequence[str] = tuple(THEMES)
) -> None:
    """Write these pictures."""
    for name in names:
        for theme in themes:
            save(DRAWINGS[name], theme, folder / f"{name}-{theme}.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these of {', '.join(DRAWINGS)}")
    named = parser.parse_args().names
    if unknown := set(named) - set(DRAWINGS):
        parser.error(f"no picture is called {', '.join(sorted(unknown))}; there are {', '.join(DRAWINGS)}")
    draw(named or tuple(DRAWINGS))


if __name__ == "__main__":
    main()
