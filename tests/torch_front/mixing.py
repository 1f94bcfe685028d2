"""What the tests of groups with different rules share."""

from __future__ import annotations

from typing import Any

import torch
from torch_front.front import BUSY, FRONT_OF, parameters

from layerwise.torch import Mixed

NAMES = list(FRONT_OF)
SHAPES = {"matrix": (4, 3), "vector": (5,)}
BOUND = 0.5


def models(seed: int = 0, dtype: Any = torch.float64) -> dict[str, dict[str, Any]]:
    """Named parameters for each optimizer."""
    return {
        name: {f"{name}.{key}": p for key, p in parameters(seed + i, SHAPES, dtype).items()}
        for i, name in enumerate(NAMES)
    }


def everything(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {key: p for own in found.values() for key, p in own.items()}


def mixed(found: dict[str, dict[str, Any]], **options: Any) -> Mixed:
    """A group for each optimizer."""
    groups = [{"params": list(own.items()), "rule": name, **BUSY[FRONT_OF[name]]} for name, own in found.items()]
    return Mixed(groups, **options)
