"""The states, under the names in pickles of earlier versions."""

from __future__ import annotations

from typing import Any

from layerwise.jax import optimizers


def __getattr__(name: str) -> Any:
    if name.endswith("State") and name in optimizers.__all__:
        return getattr(optimizers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
