"""States of `layerwise.paddle`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
from paddle.base import dygraph

from layerwise.convert._kept import Kept, TensorFields, numbers_of
from layerwise.core.slot import Slot
from layerwise.paddle import _state
from layerwise.paddle._arrays import shape_of
from layerwise.rules.requests import Array
from layerwise.storage.sixteen_bits import MASTER, REMAINDER


class Ours:
    """An optimizer of Paddle's parameters, by their names."""

    def __init__(self, optimizer: Any, params: object) -> None:
        self.optimizer = optimizer
        self.rule: str = optimizer._hyper.optimizer
        if optimizer._graph is None:
            optimizer._heed_wrappers()

    def wanted(self) -> dict[str, TensorFields]:
        settings = self.optimizer._settings
        return {p.name: TensorFields.of(self.rule, settings[p.name]) for p in self.optimizer._members}

    def read(self) -> dict[str, Kept]:
        graph = self.optimizer._graph
        slots = self.optimizer._tensors.slots if graph is None else graph.slots()
        shapes = {p.name: shape_of(p) for p in self.optimizer._members}
        wanted, found = self.wanted(), {}
        for name, slot in slots.items():
            arrays = {key: x for key, x in slot.arrays.items() if key not in (MASTER, REMAINDER)}
            _state.check_not_freed(name, slot)
            fields = {key: _on_host(x) for key, x in arrays.items()}
            found[name] = wanted[name].kept(slot.step, shapes[name], fields)
        return found

    def write(self, kept: Mapping[str, Kept]) -> object:
        with dygraph.guard():
            slots = {
                name: Slot({field: paddle.to_tensor(x) for field, x in one.fields.items()}, one.step, one.shape)
                for name, one in kept.items()
            }
            saved = _state.dump(self.optimizer._names, self.optimizer._settings, slots)
        self.optimizer.set_state_dict(saved)
        return self.optimizer


def _on_host(x: Array) -> np.ndarray:
    return numbers_of((x if x.dtype == paddle.float64 else paddle.cast(x, "float32")).numpy())
