"""The names of the PyTorch optimizers, and their classes."""

from __future__ import annotations

from typing import Any

import layerwise.torch
from layerwise.contrib.trainers import PREFIX
from layerwise.hyper import Hyper
from layerwise.registry import ENTRIES


def classes() -> dict[str, type[Any]]:
    """Return the classes by the names under which they are registered."""
    return {f"{PREFIX}{name.lower()}": getattr(layerwise.torch, name) for name in ENTRIES}


def options_of(optimizer: type[Any]) -> dict[str, Any]:
    """Return the options of a class, each with its declaration."""
    h: type[Hyper] = optimizer._hyper
    return dict(h.__dataclass_fields__)
