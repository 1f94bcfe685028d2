"""An agreement that no host waits for: the device learns its outcome, and writes or skips by it.

It is for steps that may be captured in a CUDA graph. The host learns one step later whether processes disagreed, and
not about what: to say that in words, processes would have to wait for one another. A process that cannot take a step
reports that in the first message and sends no other. So a step of several is not agreed on here, unless it is recorded:
what replays it cannot fail halfway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from layerwise.errors import EngineError

HOST = ("cpu",)  # devices whose tensors the host reads without waiting
FIRST = (
    "a sharded step cannot be recorded in a CUDA graph before one like it has been taken: the processes have to agree "
    "on it first. Take some steps before."
)


class Verdicts:
    """The outcomes of all steps so far: True if processes disagreed about one that the host has not learned of."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._disagreed = torch.zeros((), dtype=torch.bool, device=device)
        self._page = torch.zeros((), dtype=torch.bool, pin_memory=device.type == "cuda")
        self._arrives: Any = None  # when the page has the outcome of the last step
        self._recorded = False  # whether a graph may give others since
        self._known: tuple[Sequence[float], Tensor] = ((), torch.zeros(0))

    def numbers(self, numbers: Sequence[float]) -> Tensor:
        """Return these numbers on the device, and keep them for the next step."""
        if self._known[0] != numbers:
            if captures(self.device):
                raise EngineError(FIRST)
            pinned = self.device.type == "cuda"
            page = torch.tensor(numbers, dtype=torch.float64, pin_memory=pinned)
            self._known = numbers, page.to(self.device, non_blocking=pinned)
        return self._known[1]

    def decides(self, known: bool, alone: bool) -> bool:
        """Return True if no host waits for the outcome of a step, whose list of sums is `known` to this process."""
        recorded = captures(self.device)
        if recorded and not known:
            raise EngineError(FIRST)
        return known and (alone or recorded)

    def note(self, disagreed: Tensor) -> None:
        """Remember the outcome of a step until the host learns it."""
        self._disagreed.logical_or_(disagreed)
        if captures(self.device):
            self._recorded = True
        elif self.device.type == "cuda":
            self._page.copy_(self._disagreed, non_blocking=True)
            self._arrives = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrives.record()

    def disagreed(self) -> bool:
        """Return True if processes disagreed about an earlier step. At most this waits for the last of those."""
        if captures(self.device) or self._disagreed.is_meta:
            return False
        if self._arrives is None or self._recorded:
            return bool(self._disagreed)
        self._arrives.synchronize()
        return bool(self._page)

    def forget(self) -> None:
        """Begin again, now that the host has learned of it."""
        self._disagreed.zero_()


def captures(device: torch.device) -> bool:
    """Return True if a CUDA graph records the device's work."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
