"""The lock by which threads step one optimizer one after the other."""

from __future__ import annotations

import os
from _thread import RLock
from typing import Any
from weakref import WeakSet

_locks: WeakSet[Any] = WeakSet()


class OneAtATime(RLock):  # type: ignore[misc]  # final to type checkers alone
    """A lock of an optimizer, held while it steps. Copies of the optimizer and forked processes have their own.

    Its own methods enter and leave it, without a line of Python between that a signal's handler could interrupt.
    """

    def __init__(self) -> None:
        super().__init__()
        _locks.add(self)

    def __reduce__(self) -> Any:
        return OneAtATime, ()


def _release_in_child() -> None:
    """Release what other threads hold, which a forked process does not have."""
    held: Any
    for held in list(_locks):
        if not held._is_owned():
            held._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
