"""LAMB, LARS and Adafactor: optimizers that measure each tensor's step against that tensor.

Import the API of your framework: `layerwise.torch`, `layerwise.jax`, `layerwise.numpy`, `layerwise.keras`,
`layerwise.mlx` or `layerwise.paddle`. Importing this package imports no framework.
"""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layerwise._version import __version__
    from layerwise.catalog.presets import Preset, preset, presets
    from layerwise.engines.processor import get_num_threads, set_num_threads
    from layerwise.layout.blocks import Blocks
    from layerwise.options.by_name import optional
    from layerwise.trainers import register

__all__ = [
    "Blocks",
    "Preset",
    "__version__",
    "get_num_threads",
    "optional",
    "preset",
    "presets",
    "register",
    "set_num_threads",
]

# Imported when they are asked for, so that the commands begin, and can be interrupted, before NumPy is read.
DOORS = {
    "__version__": "layerwise._version",
    "Blocks": "layerwise.layout.blocks",
    "register": "layerwise.trainers",
    "optional": "layerwise.options.by_name",
    **dict.fromkeys(("get_num_threads", "set_num_threads"), "layerwise.engines.processor"),
    **dict.fromkeys(("Preset", "preset", "presets"), "layerwise.catalog.presets"),
}
CLASSES = ("layerwise.torch", "layerwise.numpy", "layerwise.keras", "layerwise.mlx", "layerwise.paddle")


def _place(name: str) -> str:
    """Return a sentence on the APIs that have this name, or one that differs by capital letters alone."""
    if find_spec(f"{__name__}.{name}"):  # which an import statement imports once this says that there is no such name
        return ""
    from layerwise.catalog.registry import ENTRIES

    functions = dict.fromkeys(map(str.lower, ENTRIES), ("layerwise.jax",))
    fronts = {"param_groups": ("layerwise.torch",), **dict.fromkeys(ENTRIES, CLASSES), **functions}
    found = name if name in fronts else next((one for one in fronts if one.lower() == name.lower()), None)
    if found is None:
        return ""
    first, *others = fronts[found]
    rest = "".join(f", or from {front}" for front in others)
    return f"Take it from the API of your framework: from {first} import {found}{rest}."


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # a checker would take every name to be there

    def __getattr__(name):
        if name in DOORS:
            return getattr(import_module(DOORS[name]), name)
        message, place = f"module {__name__!r} has no attribute {name!r}", _place(name)
        raise AttributeError(f"{message}. {place}" if place else message)


if os.environ.get("LAYERWISE_REGISTER"):
    from layerwise.trainers import register_as_asked

    register_as_asked()
