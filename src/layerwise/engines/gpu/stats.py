"""Measurements of a step, from the device to named arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from layerwise.engines.gpu.kernels.tables import REPORTED


class Measured:
    """A step's answers, copied to the host on first use."""

    def __init__(self, answers: Tensor) -> None:
        self._answers = answers
        self._on_host: Any = None

    @property
    def on_host(self) -> Any:
        if self._on_host is None:
            self._on_host = self._answers.cpu().numpy()
        return self._on_host


class Named(Mapping[str, Any]):
    """One job's measurements by name, a number for each layer."""

    def __init__(self, measured: Measured, layers: slice, names: Sequence[str]) -> None:
        self._measured, self._layers = measured, layers
        self._columns = {name: REPORTED.value + i for i, name in enumerate(names)}

    def __getitem__(self, name: str) -> Any:
        return np.array(self._measured.on_host[self._layers, self._columns[name]])

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)
