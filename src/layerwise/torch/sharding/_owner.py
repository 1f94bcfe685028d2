"""The one place that knows where an optimizer keeps the life of its steps."""

from __future__ import annotations

from typing import Any


def stepper_of(optimizer: Any) -> Any:
    """Return the life of an optimizer's steps, as `Stepper.of` answers for it."""
    return optimizer._stepper.of(optimizer)
