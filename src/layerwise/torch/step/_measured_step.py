"""Steps that are measured before they are taken, in parallel with the program."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

from layerwise.engines import PreparedJobs
from layerwise.errors import EngineError
from layerwise.rules.requests import Now

CHANGED = "weights or state changed during a step. Step from one thread at a time."
_worker = ThreadPoolExecutor(1, "layerwise")


class MeasuredStep:
    """A step that engines take in three parts (`PreparedJobs.step_in_parts`), after the first part."""

    def __init__(
        self,
        steps: Iterator[list[float]],
        wait: Callable[[], None],
        prepared: PreparedJobs,
        nows: Sequence[Now],
        read: Sequence[Tensor],
    ) -> None:
        self._steps, self._prepared, self._nows = steps, prepared, nows
        self._seen = _versions(read)
        self._measured = _worker.submit(_measure, steps, wait)
        self.together = False
        """Whether other parts depend on its measurements."""

    @property
    def model(self) -> list[float]:
        """For each of its tensors that needs it, its share of the sum over the model; later that whole sum."""
        return self._measured.result()

    def is_of(self, prepared: PreparedJobs, nows: Sequence[Now], read: Sequence[Tensor]) -> bool:
        """Return True if this was measured with these numbers, and what it read has not changed since."""
        measured = self._measured.exception() is None
        same = measured and prepared is self._prepared and nows == self._nows and self._seen == _versions(read)
        if not same and self.together:
            raise EngineError(CHANGED)
        return same

    def take(self) -> None:
        """Write."""
        next(self._steps, None)

    def leave(self) -> None:
        """Give it up, unless it was taken."""
        if not self._measured.cancel():
            self._measured.exception()
        self._steps.close()  # type: ignore[attr-defined]


def add_up(parts: Sequence[MeasuredStep]) -> None:
    """Give each the sum over all of them, if it needs one."""
    total = 0.0
    for part in parts:
        for x in part.model:  # in the order of one step
            total += x
    for part in parts:
        if part.model:
            part.model[:], part.together = [total], True


def at_once() -> None:
    """Do not wait for anything."""


def _measure(steps: Iterator[list[float]], wait: Callable[[], None]) -> list[float]:
    wait()
    return next(steps)


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    return [x._version for x in tensors]


def _renew() -> None:
    global _worker
    _worker = ThreadPoolExecutor(1, "layerwise")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)  # a forked process has no such thread
