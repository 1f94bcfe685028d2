"""Print the oldest versions that pyproject.toml allows of what the library needs, as pip takes them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def pins(extras: list[str]) -> list[str]:
    """Return the pins of the dependencies and of these extras."""
    text = PROJECT.read_text("utf-8")  # tomllib is younger than the oldest Python
    lists = [re.search(rf"^{name} = \[(.*?)\]", text, re.MULTILINE | re.DOTALL) for name in ("dependencies", *extras)]
    found = [pin for one in lists if one for pin in re.findall(r'"(\w+>=[\d.]+)"', one[1])]
    return [pin.replace(">=", "==") for pin in found] + [
        pin.replace("jax>=", "jaxlib==") for pin in found if pin.startswith("jax>=")
    ]


if __name__ == "__main__":
    print(*pins(sys.argv[1:]))
