"""The names of the PyTorch optimizers, and their classes; apart, because `layerwise` itself imports no framework."""

from __future__ import annotations

from typing import Any

import layerwise.torch
from layerwise.registry import ENTRIES
from layerwise.trainers import PREFIX


def classes() -> dict[str, type[Any]]:
    """Return the classes by the names under which they are registered."""
    return {f"{PREFIX}{name.lower()}": getattr(layerwise.torch, name) for name in ENTRIES}
