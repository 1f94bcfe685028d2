"""The one place that knows where an optimizer keeps the life of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerwise.torch._stepper import Stepper


def stepper_of(optimizer: Any) -> Stepper:
    """Return the life of an optimizer's steps, as `Stepper.of` answers for it."""
    found: Stepper = optimizer._stepper
    return found.of(optimizer)
