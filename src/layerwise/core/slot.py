"""What is kept of one tensor from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from layerwise.core.library import Array
from layerwise.core.plan import Plan


class Taken:
    """The measurements of the last step of tensors that step together; of its copies, those at the time."""

    def __init__(self, plans: Sequence[Plan], measured: Sequence[Any] = ()) -> None:
        self._plans, self.measured = plans, measured
        self.prepared: Any = None  # which knows them, if it is kept

    def __reduce__(self) -> Any:
        return Taken, (self._plans, self._known())

    def _known(self) -> Sequence[Any]:
        return self.measured if self.prepared is None else self.prepared.stats()

    def stats(self) -> list[dict[str, Any]]:
        """Return them in readable form, for each tensor."""
        each = iter(self._known())
        return [next(plan.measured(each))[1] for plan in self._plans]


@dataclass(eq=False)
class Slot:
    """The state of one tensor, for APIs that keep it in objects of ours."""

    arrays: dict[str, Array]  # by the names that checkpoints have
    step: int = 0
    shape: tuple[int, ...] = ()
    last: tuple[Taken, int] | None = None  # its last step, and its place in it
