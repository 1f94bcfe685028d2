"""The step parameters: addresses of gradients, and coefficients, copied to the device when they change."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import nan
from operator import is_not
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from layerwise.engines import DeviceStepCount, Job
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.programs import kernel_numbers, kernel_numbers_in
from layerwise.errors import EngineError
from layerwise.options.settings import Hyper
from layerwise.options.values import Scalar, is_number
from layerwise.rules.requests import Now

SPARES = 4  # recordings that may follow one another


def capturing(device: torch.device) -> bool:
    """Return True if launches are being recorded for a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class EqualSettings(NamedTuple):
    """Jobs with the same settings, whose `nows` differ only in arrays on the device."""

    h: Hyper
    jobs: tuple[int, ...]
    nows: list[Now]


class StepParams:
    """The table of step parameters on the device, a row for each job, and its last contents."""

    def __init__(self, jobs: Sequence[Job], device: torch.device) -> None:
        known: dict[Hyper, Hyper] = {}
        self.device, self._hs = device, [known.setdefault(job.h, job.h) for job in jobs]  # equal ones are one object
        self._h_ids = list(map(id, self._hs))
        self._drawing = [j for j, job in enumerate(jobs) if job.draws]  # these need the step
        own = max(len(kernel_numbers(h, Now(1, 0.1, 0.1)) or ()) for h in known)
        self.width = at.NUMBERS.value + own
        self.table = torch.zeros((len(jobs), self.width), dtype=torch.int64, device=device)
        self.scaled = False  # whether gradients have a scale
        self._written = np.zeros((len(jobs), self.width), np.int64)
        self._sent: np.ndarray | None = None  # what the table on the device has, but for what was computed there
        self._nows: Sequence[Now] = ()  # the last ones, kept alive so that they can be compared by identity
        self._changing = False  # whether they hold arrays, whose numbers may have changed
        self._on_device: list[EqualSettings] = []
        self._computed: list[tuple[Scalar, ...]] = []  # their coefficients in this step
        self._places: dict[Hashable, tuple[Tensor, Tensor]] = {}  # of coefficients that are computed on the device
        self._spares: list[Tensor] = []  # pinned pages, ready before a recording
        self._recorded: list[Tensor] = []  # pages that a replayed copy reads

    def write(self, nows: Sequence[Now]) -> None:
        """Update the table on the host for these `nows`."""
        if capturing(self.device) and any(is_number(now.t) for now in nows):
            raise EngineError(
                "a CUDA graph cannot capture a step whose counts are on the CPU: every replay would be the same "
                "step. Create the optimizer with capturable=True."
            )
        if self._changing or len(nows) != len(self._nows) or any(map(is_not, nows, self._nows)):
            self._write_nows(nows)
        else:
            self._computed = list(map(self._values, self._on_device))

    def send(self, places: np.ndarray) -> None:
        """Copy the table to the device if it has changed; `places` are the addresses of the gradients."""
        recorded = capturing(self.device)
        self._written[:, at.GRADIENT.value] = places
        # A graph contains the copy, because other steps may have changed the table before it is replayed. After a
        # recording every step copies, because nothing shows whether a replay has changed the table since.
        if recorded or self._recorded or self._sent is None or not np.array_equal(self._written, self._sent):
            self._send(recorded)
        for alike, found in zip(self._on_device, self._computed, strict=True):
            self._put(alike, found)
        self._computed = []

    # ---- coefficients

    def _write_nows(self, nows: Sequence[Now]) -> None:
        """Compute the coefficients once for each combination of settings and `nows`: groups are few, tensors many."""
        self._nows = ()  # also if this fails half way
        unknown: list[int] = []
        seen: dict[Hashable, list[int]] = {}
        for j, (h, now) in enumerate(zip(self._h_ids, nows, strict=True)):
            if isinstance(now.t, DeviceStepCount) or (self._drawing and not is_number(now.t)):
                unknown.append(j)
            else:
                seen.setdefault((h, id(now)), []).append(j)
        for jobs in seen.values():
            found = kernel_numbers(self._hs[jobs[0]], nows[jobs[0]])
            if found is None:
                unknown += jobs
            else:
                self._note(jobs, found)
        self._written[:, at.COUNTER.value] = 0
        for j in unknown:
            if isinstance(nows[j].t, DeviceStepCount):
                self._written[j, at.COUNTER] = nows[j].t.step.data_ptr()
        for j in self._drawing:
            self._written[j, at.STEP] = nows[j].t if is_number(nows[j].t) else 0
        self._on_device = self._alike(unknown, nows)
        self._computed = [self._values(one) for one in self._on_device]
        for one, of_both in zip(self._on_device, self._computed, strict=True):
            self._note(one.jobs, [x if is_number(x) else nan for x in of_both])  # not the value that a number may get
        on_host, on_device = [nows[jobs[0]] for jobs in seen.values()], [one.nows[0] for one in self._on_device]
        self.scaled = any(not is_number(now.g_scale) or now.g_scale != 1 for now in on_host + on_device)
        self._changing = any(map(_holds_arrays, on_host))
        self._nows = nows

    def _note(self, jobs: Sequence[int], found: Sequence[float]) -> None:
        first = at.NUMBERS.value
        self._written[jobs, first : first + len(found)] = np.array(found, np.float64).view(np.int64)

    def _alike(self, jobs: Sequence[int], nows: Sequence[Now]) -> list[EqualSettings]:
        """Return jobs together that differ only in arrays."""
        found: dict[Hashable, list[int]] = {}
        for j in jobs:
            fixed = tuple(x if x is None or is_number(x) else Tensor for x in nows[j])
            found.setdefault((self._h_ids[j], fixed), []).append(j)
        return [EqualSettings(self._hs[own[0]], tuple(own), [nows[j] for j in own]) for own in found.values()]

    def _values(self, alike: EqualSettings) -> tuple[Scalar, ...]:
        """Return the coefficients of jobs that are alike, each a number, or an array of them all or for each job.

        The device computes them by the rule's own code, and nothing waits for it.
        """
        with torch.no_grad():
            now = Now(*map(self._together, zip(*alike.nows, strict=True)))
            return kernel_numbers_in(torch, alike.h, now) or ()

    def _together(self, column: Sequence[Scalar]) -> Scalar:
        first = column[0]
        if first is None or is_number(first):
            return first
        if all(type(x) is DeviceStepCount for x in column):  # they have counted the steps before this one
            return torch.stack([x.step for x in column]).to(torch.float64) + 1
        if not any(map(is_not, column, [first] * len(column))):
            return self._wide(first)
        return torch.stack([self._wide(x) for x in column])

    def _wide(self, x: Scalar) -> Tensor:
        wide: Tensor = x.step + 1 if isinstance(x, DeviceStepCount) else x.detach()
        return wide.to(self.device, torch.float64).reshape(())

    def _put(self, alike: EqualSettings, found: Sequence[Scalar]) -> None:
        """Write the device's results to the table."""
        arrays = {i: x for i, x in enumerate(found, at.NUMBERS.value) if not is_number(x)}
        if arrays:
            each = [x.to(torch.float64).expand(len(alike.jobs)) for x in arrays.values()]
            self.table.view(torch.float64).index_put_(self._at(alike.jobs, tuple(arrays)), torch.stack(each, 1))
        if self._drawing and not is_number(alike.nows[0].t):
            steps = self._together([now.t for now in alike.nows]).to(torch.int64).reshape(-1, 1)
            self.table.index_put_(self._at(alike.jobs, (at.STEP.value,)), steps.expand(len(alike.jobs), 1))

    def _at(self, jobs: tuple[int, ...], columns: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return rows and columns of the table, which are sent before a recording."""
        if (jobs, columns) not in self._places:
            rows = torch.tensor(jobs, device=self.device)[:, None]
            self._places[jobs, columns] = rows, torch.tensor(columns, device=self.device)[None, :]
        return self._places[jobs, columns]

    # ---- the copy

    def _send(self, recorded: bool) -> None:
        # Each copy has a page of its own, because the host continues during the copy. Pages for a recording are
        # allocated before it, because allocating pinned memory may fail during one.
        page = self._spares.pop() if recorded and self._spares else self._page()
        page.numpy()[...] = self._sent = self._written.copy()
        self.table.copy_(page, non_blocking=True)
        if recorded:
            self._recorded.append(page)
        elif self._on_device:  # the step may be recorded
            self._spares += [self._page() for _ in range(SPARES - len(self._spares))]

    def _page(self) -> Tensor:
        pinned = self.device.type == "cuda"
        return torch.empty(self._written.shape, dtype=torch.int64, device="cpu", pin_memory=pinned)


def _holds_arrays(now: Now) -> bool:
    return not all(x is None or is_number(x) or isinstance(x, DeviceStepCount) for x in now)
