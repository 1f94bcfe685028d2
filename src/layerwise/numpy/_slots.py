"""The record that an optimizer keeps of each name: its settings as they apply to that tensor, and its state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from layerwise.core import plan, slot


@dataclass(frozen=True)
class Plan(plan.Plan):
    """The plan of one name's step, with its factors on the rates."""

    lr_scale: float
    decay_factor: float


@dataclass
class Slot(slot.Slot):
    """The state of one name, and the measurements of its last step."""

    shape: tuple[int, ...] = ()
    measured: list[Any] = field(default_factory=list)  # in the last step, piece by piece
    plan: Plan | None = None  # of that step
