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

# Imported on demand, so that the commands start, and can be interrupted, before NumPy is loaded.
DOORS = {
    "__version__": "layerwise._version",
    "Blocks": "layerwise.layout.blocks",
    "register": "layerwise.trainers",
    "optional": "layerwise.options.by_name",
    **dict.fromkeys(("get_num_threads", "set_num_threads"), "layerwise.engines.processor"),
    **dict.fromkeys(("Preset", "preset", "presets"), "layerwise.catalog.presets"),
}
TOOLS = ("Mixed", "NoiseScale", "heatmap", "monitor", "overlap", "param_groups", "scheduler", "step_in_backward")
CLASSES = ("layerwise.torch", "layerwise.numpy", "layerwise.keras", "layerwise.mlx", "layerwise.paddle")


def _place(name: str) -> str:
    """Return a sentence that names the APIs with this name, or with one that differs only in case."""
    if find_spec(f"{__name__}.{name}"):  # a submodule: raise AttributeError, and the import statement will import it
        return ""
    from layerwise.catalog.registry import ENTRIES

    functions = dict.fromkeys(map(str.lower, ENTRIES), ("layerwise.jax",))
    fronts = {**dict.fromkeys(TOOLS, ("layerwise.torch",)), **dict.fromkeys(ENTRIES, CLASSES), **functions}
    found = name if name in fronts else next((one for one in fronts if one.lower() == name.lower()), None)
    if found is None:
        return ""
    first, *others = fronts[found]
    rest = "".join(f", or from {front}" for front in others)
    rest += f", or from layerwise.jax import {found.lower()}" if found in ENTRIES else ""
    return f"Use the API of your framework: from {first} import {found}{rest}."


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # a type checker would assume that every name exists

    def __getattr__(name):
        if name in DOORS:
            return getattr(import_module(DOORS[name]), name)
        message, place = f"module {__name__!r} has no attribute {name!r}", _place(name)
        raise AttributeError(f"{message}. {place}" if place else message)


if os.environ.get("LAYERWISE_REGISTER"):
    from layerwise.trainers import register_as_asked

    register_as_asked()
