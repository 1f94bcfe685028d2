"""LAMB, LARS and Adafactor: optimizers that measure each tensor's step against that tensor.

Import the API of your framework: `layerwise.torch`, `layerwise.jax`, `layerwise.numpy`, `layerwise.keras` or
`layerwise.paddle`. Importing this package imports no framework.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from layerwise.blocks import Blocks
from layerwise.names import optional
from layerwise.presets import Preset, preset, presets
from layerwise.registry import ENTRIES
from layerwise.threads import get_num_threads, set_num_threads
from layerwise.trainers import register, register_as_asked

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

FRONTS = {
    **dict.fromkeys(ENTRIES, ("layerwise.torch", "layerwise.numpy", "layerwise.keras", "layerwise.paddle")),
    **dict.fromkeys(map(str.lower, ENTRIES), ("layerwise.jax",)),
    "param_groups": ("layerwise.torch",),
}

if not TYPE_CHECKING:  # a checker would take every name to be there

    def __getattr__(name: str) -> Any:
        """Raise an error that names the modules of the APIs, for a name that each of them has."""
        statement = "".join(f" from {front} import {name}" for front in FRONTS.get(name, ())[:1])
        others = "".join(f", or from {front}" for front in FRONTS.get(name, ())[1:])
        hint = f". Take it from the API of your framework:{statement}{others}" if statement else ""
        raise AttributeError(f"module 'layerwise' has no attribute {name!r}{hint}.")


register_as_asked()  # which imports nothing unless the environment asks for it
