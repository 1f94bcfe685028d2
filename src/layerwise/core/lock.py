"""A lock that lets only one thread at a time step an optimizer."""

from __future__ import annotations

import os
from _thread import RLock
from typing import Any
from weakref import WeakSet

_locks: WeakSet[Any] = WeakSet()


class StepLock(RLock):  # type: ignore[misc]  # final to type checkers alone
    """A lock of an optimizer, held while it steps. Copies of the optimizer and forked processes have their own.

    Its own methods are bound as `__enter__` and `__exit__`, without a line of Python that a signal handler could
    interrupt.
    """

    def __init__(self) -> None:
        super().__init__()
        _locks.add(self)

    def __reduce__(self) -> tuple[object, ...]:
        return StepLock, ()


def _release_in_child() -> None:
    """Release the locks of other threads, which a forked process does not have."""
    held: Any
    for held in list(_locks):
        if not held._is_owned():
            held._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
