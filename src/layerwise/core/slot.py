"""What is kept of one tensor from step to step."""

from __future__ import annotations

from dataclasses import dataclass

from layerwise.core.library import Array


@dataclass
class Slot:
    """The state of one tensor, for APIs that keep it in objects of ours."""

    arrays: dict[str, Array]  # by the names that checkpoints have
    step: int = 0
