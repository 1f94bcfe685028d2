"""What is kept of one tensor from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from layerwise.core.library import Array
from layerwise.core.plan import Plan


@dataclass
class Slot:
    """The state of one tensor, for APIs that keep it in objects of ours, and what its last step measured."""

    arrays: dict[str, Array]  # by the names that checkpoints have
    step: int = 0
    shape: tuple[int, ...] = ()
    plan: Plan | None = None  # of the last step
    measured: Sequence[Any] = ()  # in it, piece by piece

    def stats(self) -> dict[str, Any]:
        """Return the measurements in readable form, empty before the first step."""
        return {} if self.plan is None else next(self.plan.measured(iter(self.measured)))[1]
