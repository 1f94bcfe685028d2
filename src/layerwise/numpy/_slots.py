"""The record that an optimizer keeps of each name: its settings as they apply to that tensor, and its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from layerwise.layout import Layout


@dataclass(frozen=True)
class Plan:
    """The layout and the factors of one name's step."""

    layout: Layout
    lr_scale: float
    decay_factor: float
    alike: Mapping[str, bool]  # whether a field extends along all dimensions of the tensor


@dataclass
class Slot:
    """The state of one name."""

    shape: tuple[int, ...]
    state: Any  # the rule's State, of stored arrays
    step: int = 0
    measured: list[Mapping[str, Any]] = field(default_factory=list)  # in the last step, piece by piece
    layout: Layout | None = None  # of that step
    beside: dict[str, Any] = field(default_factory=dict)  # scales of groups, and what weights lack, as in saved states
