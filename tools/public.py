"""Write what users rely on into tests/public.txt: public names and their arguments, which a test compares.

python tools/public.py

A module whose framework is not installed keeps its lines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, isclass, isroutine, signature
from pathlib import Path
from typing import Any

LIST = Path(__file__).parents[1] / "tests" / "public.txt"
MODULES = {  # and the package that each needs
    "layerwise": "numpy",
    "layerwise.convert": "optax",
    "layerwise.errors": "numpy",
    "layerwise.jax": "optax",
    "layerwise.keras": "keras",
    "layerwise.mlx": "mlx",
    "layerwise.numpy": "numpy",
    "layerwise.paddle": "paddle",
    "layerwise.recipes": "numpy",
    "layerwise.schedules": "numpy",
    "layerwise.torch": "torch",
    "layerwise.torch.flat": "torch",
}


def arguments(what: Any) -> str:
    """Return the arguments of a callable: names, kinds and defaults, without types. What is built in may have none."""
    try:
        found = signature(what)
    except ValueError:
        return ""
    each = [one.replace(annotation=Parameter.empty) for one in found.parameters.values()]
    shown = str(found.replace(parameters=each, return_annotation=found.empty))
    return re.sub(r"<(function|class) '?([\w.]+)'?[^>]*>", r"\2", shown)


def members(cls: type) -> Iterator[str]:
    """Yield the public methods and properties of a class, and of those of the library that it derives from."""
    for home in cls.__mro__:
        if home.__module__.startswith("layerwise"):
            public = {name: kept for name, kept in vars(home).items() if name[0] != "_"}
            for name, kept in public.items():
                what = getattr(kept, "__func__", kept)
                # PyTorch puts wrapped methods of a base into classes that have been used.
                own = isroutine(what) and what.__qualname__.startswith(f"{home.__qualname__}.")
                if own or isinstance(what, property):
                    yield f"{home.__name__}.{name}{arguments(what) if isroutine(what) else ''}"


def lines(module: str) -> list[str]:
    """Return a line for each public name of a module, and for what its classes have, each once."""
    found = import_module(module)
    own = [name for name, what in vars(found).items() if getattr(what, "__module__", "") == module and name[0] != "_"]
    each = {name: getattr(found, name) for name in getattr(found, "__all__", own)}
    names = {f"{name}{arguments(what) if callable(what) else ''}" for name, what in each.items()}
    return sorted(names.union(*(members(what) for what in each.values() if isclass(what))))


def listed(module: str) -> list[str]:
    """Return the lines that the list has of a module."""
    sections = LIST.read_text("utf-8").split("# ")
    return next((rows for name, *rows in map(str.splitlines, filter(None, sections)) if name == module), [])


def main() -> None:
    os.environ.setdefault("KERAS_BACKEND", "numpy")  # Keras wants TensorFlow otherwise
    each = {module: lines(module) if find_spec(needs) else listed(module) for module, needs in MODULES.items()}
    LIST.write_text("".join(f"{line}\n" for name in each for line in (f"# {name}", *each[name])), encoding="utf-8")


if __name__ == "__main__":
    main()
