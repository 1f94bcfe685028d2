"""What the host tells the device of each step: where gradients lie, and `now`. One copy, if anything has changed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from math import nan
from operator import is_not
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerwise.engines import Counter
from layerwise.engines.gpu.kernels import tables as at
from layerwise.errors import EngineError
from layerwise.rules.asks import Now
from layerwise.rules.parts import is_number

SPARES = 4  # recordings that may follow one another
KINDS = {torch.float32: at.FLOAT32.value, torch.float64: at.FLOAT64.value, torch.int64: at.INT64.value}


def capturing(device: torch.device) -> bool:
    """Whether what is launched is recorded to be replayed."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class Letter:
    """A table on the device, and what was last written into it."""

    def __init__(self, jobs: int, device: torch.device) -> None:
        self.device, self.jobs = device, jobs
        self.there = torch.zeros((at.LETTER.value, jobs), dtype=torch.int64, device=device)
        self.scaled = False  # whether gradients have a scale
        self._said = np.zeros((at.LETTER.value, jobs), np.int64)
        self._nows: Sequence[Now] = ()  # what it says, kept so that it can be told by its identity
        self._converted: list[Tensor] = []
        self._spares: list[Any] = []
        self._kept: list[Any] = []  # what a recorded copy reads when it is replayed
        self._unsent = False

    def write(self, nows: Sequence[Now]) -> None:
        """Write down what the step is told, on the host alone."""
        if capturing(self.device) and any(is_number(now.t) for now in nows):
            raise EngineError(
                "a step whose counts are on the host cannot be recorded in a CUDA graph: every replay would be the "
                "same step. Make the optimizer with capturable=True."
            )
        # What had to be converted may have got another value since.
        if self._converted or len(nows) != len(self._nows) or any(map(is_not, nows, self._nows)):
            self._unsent = True
            self._tell(nows)

    def send(self, places: np.ndarray) -> None:
        """Send it, where it says something new; `places` is where gradients lie."""
        recorded = capturing(self.device)
        # A graph has the copy in it, because by the time it is replayed another letter may have come; and who sends
        # one after a recording cannot know whether that has been replayed.
        if self._unsent or recorded or self._kept or not np.array_equal(places, self._said[at.GRADIENT.value]):
            self._said[at.GRADIENT.value] = places
            self._send(recorded)
            self._unsent = False

    def used_on(self, stream: Any) -> None:
        """Keep converted numbers until this stream is done with them, if they are freed before."""
        for x in self._converted:
            x.record_stream(stream)

    def _tell(self, nows: Sequence[Now]) -> None:
        self._converted = []
        alike = not any(map(is_not, nows, repeat(nows[0])))
        for field, column in enumerate(zip(*(nows[:1] if alike else nows), strict=True)):
            row = slice(at.HEARD.value + field, None, at.KIND.value - at.HEARD.value)
            self._said[row][:2] = self._column(column)
        word, kind = self._said[at.HEARD.value + at.G_SCALE.value], self._said[at.KIND.value + at.G_SCALE.value]
        self.scaled = bool(kind.any() or (word != self._word(1.0)[0]).any())
        self._nows = nows

    def _column(self, column: Sequence[Any]) -> Any:
        """What is said of one thing of all jobs, and which kind that is."""
        first = column[0]
        if not any(map(is_not, column, repeat(first))):
            return np.array(self._word(first))[:, None]
        if all(type(x) is Counter for x in column):
            return [x.step.data_ptr() for x in column], [at.COUNTER.value] * len(column)
        return list(zip(*map(self._word, column), strict=True))

    def _word(self, x: Any) -> tuple[int, int]:
        if isinstance(x, Counter):
            return x.step.data_ptr(), at.COUNTER.value
        if x is None:
            x = nan  # what follows the rule's own formula
        if not isinstance(x, Tensor):
            return int(np.float64(x).view(np.int64)), at.NUMBER.value
        if x.dtype not in KINDS or x.device != self.device:
            x = x.to(self.device, torch.float64)
            self._converted.append(x)
        return x.data_ptr(), KINDS[x.dtype]

    def _send(self, recorded: bool) -> None:
        # A page of its own for each letter: the copy is made while the host goes on. Memory for it is got ahead of a
        # recording, during which it might not be had.
        page = self._spares.pop() if recorded and self._spares else self._page()
        page.numpy()[...] = self._said
        self.there.copy_(page, non_blocking=True)
        if recorded:
            self._kept.append((page, self._converted))
        elif self._said[at.KIND.value].all():  # it may be recorded
            self._spares += [self._page() for _ in range(SPARES - len(self._spares))]

    def _page(self) -> Any:
        shape = (at.LETTER.value, self.jobs)
        return torch.empty(shape, dtype=torch.int64, device="cpu", pin_memory=self.device.type == "cuda")
