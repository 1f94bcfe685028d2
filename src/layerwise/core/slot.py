"""What is kept of one tensor from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from layerwise.core.library import Array
from layerwise.core.plan import Plan


@dataclass(eq=False)
class Taken:
    """The measurements of the last step of tensors that step together."""

    plans: Sequence[Plan]
    measured: Sequence[Any] = ()

    def stats(self) -> list[dict[str, Any]]:
        """Return them in readable form, for each tensor."""
        each = iter(self.measured)
        return [next(plan.measured(each))[1] for plan in self.plans]


@dataclass(eq=False)
class Slot:
    """The state of one tensor, for APIs that keep it in objects of ours."""

    arrays: dict[str, Array]  # by the names that checkpoints have
    step: int = 0
    shape: tuple[int, ...] = ()
    last: tuple[Taken, int] | None = None  # its last step, and its place in it
