"""LAMB, LARS and Adafactor: optimizers whose step for a tensor is measured against that tensor itself.

Take the front of your framework: `layerwise.numpy`. Importing this package imports no framework.
"""

from importlib.metadata import version

from layerwise.blocks import Blocks
from layerwise.presets import Preset, preset, presets
from layerwise.threads import get_num_threads, set_num_threads

__all__ = ["Blocks", "Preset", "__version__", "get_num_threads", "preset", "presets", "set_num_threads"]

__version__ = version("layerwise")
