"""States of `layerwise.numpy`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from layerwise.convert._kept import Kept, TensorFields, numbers_of
from layerwise.core.slot import NamedState
from layerwise.numpy._arrays import Arrays
from layerwise.numpy._optimizer import Optimizer
from layerwise.storage.sixteen_bits import MASTER, REMAINDER


class Ours:
    """An optimizer of named arrays."""

    def __init__(self, optimizer: Optimizer, params: object) -> None:
        self.optimizer = optimizer
        self.rule: str = optimizer._hyper.optimizer

    def wanted(self) -> None:
        return None

    def read(self) -> dict[str, Kept]:
        wanted = TensorFields.of(self.rule, self.optimizer._options.h)
        found = {}
        for name, slot in self.optimizer._slots.items():
            numbers = NamedState(Arrays(), slot.arrays).all_in_floating_point()
            fields = {key: numbers_of(x) for key, x in numbers.items() if key not in (MASTER, REMAINDER)}
            found[str(name)] = wanted.kept(slot.step, tuple(slot.shape), fields)
        return found

    def write(self, kept: Mapping[str, Kept]) -> object:
        header = {key: x for key, x in self.optimizer.state_dict().items() if "/" not in key and key != "ids"}
        header["step"] = np.array(max((one.step for one in kept.values()), default=0))
        entries: dict[str, object] = {}
        for name, one in kept.items():
            entries |= {f"{name}/step": np.array(one.step), f"{name}/shape": np.array(one.shape, dtype=np.int64)}
            entries |= {f"{name}/{field}": x for field, x in one.fields.items()}
        self.optimizer.load_state_dict({**header, **entries})
        return self.optimizer
