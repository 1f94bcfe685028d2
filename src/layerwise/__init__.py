"""LAMB, LARS and Adafactor: optimizers that measure each tensor's step against that tensor.

Import the API of your framework: `layerwise.torch`, `layerwise.jax`, `layerwise.numpy`, `layerwise.keras`,
`layerwise.mlx` or `layerwise.paddle`. Importing this package imports no framework.
"""

import os
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from layerwise.blocks import Blocks
from layerwise.elsewhere import missing
from layerwise.names import optional
from layerwise.presets import Preset, preset, presets
from layerwise.registry import ENTRIES
from layerwise.threads import get_num_threads, set_num_threads

if TYPE_CHECKING:
    from layerwise.contrib.trainers import register

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

try:
    __version__ = version("layerwise")
except PackageNotFoundError:  # its sources are on the path, and it was never installed
    __version__ = "0+source"

CLASSES = ("layerwise.torch", "layerwise.numpy", "layerwise.keras", "layerwise.mlx", "layerwise.paddle")
FRONTS = {
    "param_groups": ("layerwise.torch",),
    **dict.fromkeys(ENTRIES, CLASSES),
    **dict.fromkeys(map(str.lower, ENTRIES), ("layerwise.jax",)),
}


def _place(name: str) -> str:
    """Return a sentence on the modules that have this name, or one that differs by capital letters alone."""
    found = name if name in FRONTS else next((one for one in FRONTS if one.lower() == name.lower()), None)
    if found is None:
        return ""
    first, *others = FRONTS[found]
    rest = "".join(f", or from {front}" for front in others)
    return f"Take it from the API of your framework: from {first} import {found}{rest}"


if not TYPE_CHECKING:  # a checker would take every name to be there
    __getattr__ = missing(__name__, _place, {"register": "layerwise.contrib.trainers"})


if os.environ.get("LAYERWISE_REGISTER"):
    from layerwise.contrib.trainers import register_as_asked

    register_as_asked()
