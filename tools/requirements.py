"""Print what the library and its extras need, as pip takes it: without the library, or in the oldest versions allowed.

python tools/requirements.py dev
python tools/requirements.py --oldest jax
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
OWN = re.compile(r"layerwise\[([\w,-]+)\]")


def settings(text: str) -> dict[str, Any]:
    """Return what pyproject.toml says; the oldest Python has no reader of its own, but pip has."""
    reader = import_module("tomllib" if sys.version_info >= (3, 11) else "pip._vendor.tomli")
    found: dict[str, Any] = reader.loads(text)
    return found


def requirements(found: dict[str, Any], extras: Sequence[str]) -> Iterator[str]:
    """Yield the requirements of the library and of these extras, also where one extra names another."""
    yield from found["dependencies"]
    for extra in extras:
        for one in found["optional-dependencies"][extra]:
            if own := OWN.fullmatch(one):
                yield from requirements(found, own[1].split(","))
            else:
                yield one


def oldest(requirement: str) -> Iterator[str]:
    """Yield the pin of the oldest version, and that of jaxlib with JAX's, which otherwise takes a newer one."""
    pin = requirement.partition(";")[0].strip().replace(">=", "==")
    yield pin
    if pin.startswith("jax=="):
        yield pin.replace("jax", "jaxlib")


def main(arguments: Sequence[str]) -> None:
    project = settings(PROJECT.read_text("utf-8"))["project"]
    wanted = list(requirements(project, [one for one in arguments if one != "--oldest"]))
    pins = (pin for one in wanted for pin in oldest(one))
    print(*dict.fromkeys(pins if "--oldest" in arguments else wanted), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
