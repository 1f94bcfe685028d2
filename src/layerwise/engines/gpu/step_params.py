"""The step parameters: where gradients lie, and `now`, copied to the device once a step if anything has changed."""

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
    """Return whether launches are being recorded for a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class StepParams:
    """The table of step parameters on the device, and its last contents."""

    def __init__(self, jobs: int, device: torch.device) -> None:
        self.device, self.jobs = device, jobs
        self.table = torch.zeros((at.STEP_PARAMS.value, jobs), dtype=torch.int64, device=device)
        self.scaled = False  # whether gradients have a scale
        self._written = np.zeros((at.STEP_PARAMS.value, jobs), np.int64)
        self._nows: Sequence[Now] = ()  # the last ones, kept alive so that they can be compared by identity
        self._converted: list[Tensor] = []
        self._spares: list[Any] = []  # pinned pages, ready before a recording
        self._recorded: list[Any] = []  # pages that a replayed copy reads
        self._unsent = False

    def write(self, nows: Sequence[Now]) -> None:
        """Update the table on the host for these `nows`."""
        if capturing(self.device) and any(is_number(now.t) for now in nows):
            raise EngineError(
                "a step whose counts are on the host cannot be recorded in a CUDA graph: every replay would be the "
                "same step. Make the optimizer with capturable=True."
            )
        # A tensor that had to be converted may hold another value by now.
        if self._converted or len(nows) != len(self._nows) or any(map(is_not, nows, self._nows)):
            self._unsent = True
            self._write_nows(nows)

    def send(self, places: np.ndarray) -> None:
        """Copy the table to the device if it has changed; `places` are the addresses of the gradients."""
        recorded = capturing(self.device)
        # A graph contains the copy, because other steps may have changed the table before it is replayed. After a
        # recording every step copies, because nothing says whether a replay has changed the table since.
        if self._unsent or recorded or self._recorded or not np.array_equal(places, self._written[at.GRADIENT.value]):
            self._written[at.GRADIENT.value] = places
            self._send(recorded)
            self._unsent = False

    def used_on(self, stream: Any) -> None:
        """Keep the memory of converted numbers until this stream has used them."""
        for x in self._converted:
            x.record_stream(stream)

    def _write_nows(self, nows: Sequence[Now]) -> None:
        """Convert each of the `nows` once, however many jobs share it: groups are few, and tensors many."""
        self._converted = []
        keys = list(map(id, nows))
        distinct = dict(zip(keys, nows, strict=True))
        columns = map(self._column, zip(*distinct.values(), strict=True))
        values, kinds = zip(*columns, strict=True)
        rows = np.array([*values, *kinds], np.int64)
        if 1 < len(distinct) < len(keys):
            places = dict(zip(distinct, range(len(distinct)), strict=True))
            rows = rows.take(np.fromiter(map(places.__getitem__, keys), np.intp, len(keys)), 1)
        self._written[at.VALUE.value :] = rows
        value, kind = self._written[at.VALUE.value + at.G_SCALE.value], self._written[at.KIND.value + at.G_SCALE.value]
        self.scaled = bool(kind.any() or (value != self._value(1.0)[0]).any())
        self._nows = nows

    def _column(self, column: Sequence[Any]) -> Any:
        """Return one field of several `nows`, and the kind of each value."""
        first = column[0]
        if not any(map(is_not, column, repeat(first))):
            return [[x] * len(column) for x in self._value(first)]
        if all(type(x) is Counter for x in column):
            return [x.step.data_ptr() for x in column], [at.COUNTER.value] * len(column)
        return list(zip(*map(self._value, column), strict=True))

    def _value(self, x: Any) -> tuple[int, int]:
        if isinstance(x, Counter):
            return x.step.data_ptr(), at.COUNTER.value
        if x is None:
            x = nan  # the rule's own formula decides
        if not isinstance(x, Tensor):
            return int(np.float64(x).view(np.int64)), at.NUMBER.value
        if x.dtype not in KINDS or x.device != self.device:
            x = x.to(self.device, torch.float64)
            self._converted.append(x)
        return x.data_ptr(), KINDS[x.dtype]

    def _send(self, recorded: bool) -> None:
        # Each copy has a page of its own, because the host goes on while it is made. Those for a recording are
        # allocated before it, because allocating pinned memory may fail during one.
        page = self._spares.pop() if recorded and self._spares else self._page()
        page.numpy()[...] = self._written
        self.table.copy_(page, non_blocking=True)
        if recorded:
            self._recorded.append((page, self._converted))
        elif self._written[at.KIND.value].all():  # no value is on the host, so the step may be recorded
            self._spares += [self._page() for _ in range(SPARES - len(self._spares))]

    def _page(self) -> Any:
        shape = (at.STEP_PARAMS.value, self.jobs)
        return torch.empty(shape, dtype=torch.int64, device="cpu", pin_memory=self.device.type == "cuda")
