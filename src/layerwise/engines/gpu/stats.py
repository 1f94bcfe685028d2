"""Measurements of a step, from the device to named arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from layerwise.engines.gpu.kernels.tables import REPORTED


class Measured(Mapping[str, Any]):
    """One job's measurements by name, a number for each layer; `answers` returns those of all layers on the host."""

    def __init__(self, answers: Callable[[], Any], layers: slice, names: Sequence[str]) -> None:
        self._answers, self._layers = answers, layers
        self._columns = {name: REPORTED.value + i for i, name in enumerate(names)}

    def __getitem__(self, name: str) -> Any:
        return np.array(self._answers()[self._layers, self._columns[name]])

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)
