"""What is kept of one tensor from step to step."""

from __future__ import annotations

from dataclasses import dataclass

from layerwise.core.library import Array
from layerwise.storage.weights import MASTER


@dataclass
class Slot:
    """The state of one tensor, for APIs that keep it in objects of ours."""

    arrays: dict[str, Array]  # by the names that checkpoints have
    step: int = 0

    @property
    def master(self) -> Array | None:
        """The float32 copy of the weights that steps change, if there is one."""
        return self.arrays.get(MASTER)

    @master.setter
    def master(self, master: Array) -> None:
        self.arrays[MASTER] = master
