"""States of `layerwise.torch`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from layerwise.catalog.registry import ENTRIES
from layerwise.convert._kept import Kept, TensorFields, numbers_of
from layerwise.core.slot import own_entries
from layerwise.errors import StateError
from layerwise.storage.sixteen_bits import MASTER, REMAINDER
from layerwise.torch.arrays._library import named_state
from layerwise.torch.checkpoints import _groups
from layerwise.torch.checkpoints._saving import restored
from layerwise.torch.groups._members import Group


class Ours:
    """An optimizer of named parameters."""

    def __init__(self, optimizer: Optimizer, params: object) -> None:
        self.optimizer = optimizer
        self.saved = optimizer.state_dict()

    def _members(self) -> Iterator[tuple[str, int, Tensor, Group]]:
        """Yield each name, its key in a state_dict, its parameter, and its group."""
        for group, own in zip(self.saved["param_groups"], self.optimizer.param_groups, strict=True):
            if "param_names" not in group:
                raise StateError("its parameters have no names. Create the optimizer from model.named_parameters().")
            for row in zip(group["param_names"], group["params"], own["params"], strict=True):
                yield (*row, group)

    def _rule(self, group: Group) -> str:
        own = type(self.optimizer).__name__
        return own if own in ENTRIES else _groups.written_by(group) or own

    def wanted(self) -> dict[str, TensorFields]:
        return {name: TensorFields.of(self._rule(group), group) for name, _, _, group in self._members()}

    def read(self) -> dict[str, Kept]:
        found = {}
        for name, key, p, group in self._members():
            if key in self.saved["state"]:
                numbers = named_state(restored(own_entries(self.saved["state"][key]), p.shape)).all_in_floating_point()
                step = int(numbers.pop("step"))
                fields = {part: _on_host(x) for part, x in numbers.items() if part not in (MASTER, REMAINDER)}
                found[name] = TensorFields.of(self._rule(group), group).kept(step, tuple(p.shape), fields)
        return found

    def write(self, kept: Mapping[str, Kept]) -> object:
        state = {}
        for name, key, p, _ in self._members():
            if name in kept:
                if kept[name].shape != tuple(p.shape):
                    raise StateError(
                        f"the state of {name} is of a tensor of shape {kept[name].shape}, but the parameter has "
                        f"{tuple(p.shape)}. Pass axes=… if dimensions are in another order."
                    )
                fields = {part: torch.from_numpy(x.copy()) for part, x in kept[name].fields.items()}
                state[key] = {"step": torch.tensor(kept[name].step), **fields}
        self.optimizer.load_state_dict({**self.saved, "state": state})
        return self.optimizer


def _on_host(x: Tensor) -> np.ndarray:
    x = x.detach().cpu()
    return numbers_of((x if x.dtype == torch.float64 else x.float()).numpy())
