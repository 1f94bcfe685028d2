"""The one place that knows where an optimizer keeps the life of its steps."""

from __future__ import annotations

from typing import Any


def stepper_of(optimizer: Any, steps: bool = False) -> Any:
    """Return the life of an optimizer's steps.

    A wrapper may be made of another's attributes. It then answers for the steps that the other takes, and has its own
    once it steps by itself, or the other is gone.
    """
    found = optimizer._stepper
    own = found.members.own()
    return found if own is optimizer or not (steps or own is None) else found.moved_to(optimizer)
