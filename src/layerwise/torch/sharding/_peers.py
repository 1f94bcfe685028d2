"""Sums over the processes that hold other parts of the same tensors: one all-reduce a round completes all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from layerwise.drive import TensorRequest
from layerwise.rules.asks import Now
from layerwise.torch.sharding._agreement import Agreement, Report, all_reduced
from layerwise.torch.sharding._cuts import Held
from layerwise.torch.sharding._totals import Round, Totals, numbers_of


class Skips(NamedTuple):
    """The decision of this process to skip the step, and the reasons for which it would."""

    now: bool
    nonfinite: bool  # skip_nonfinite
    scaler: bool  # found_inf of a GradScaler

    def words(self) -> dict[str, Any]:
        """Return the part that has to be the same on all processes, in words."""
        return {"skip_nonfinite": self.nonfinite, "found_inf of a GradScaler": "there" if self.scaler else "missing"}


class Peers:
    """Adds up the sums of jobs that are stepped together."""

    def __init__(self, agreement: Agreement, jobs: Sequence[Held], described: str) -> None:
        self._agreement, self._jobs, self._described = agreement, jobs, f"{described} {agreement.words}"
        self._rounds: list[Round] = []
        self._stepper = ""

    def begin(self, nows: Sequence[Now], skips: Skips, words: Callable[[], Mapping[str, Any]]) -> None:
        """Begin a step, with what this process knows of it."""
        # What is known on the device alone is not compared, and nan is not the same even as itself.
        numbers = [tuple(x if isinstance(x, (int, float)) and x == x else 0 for x in now) for now in nows]
        fingerprint = str(hash((*numbers, skips.nonfinite, skips.scaler))).encode()
        self._number = 0
        self._report = Report(fingerprint, skips.now, lambda: {**words(), **skips.words()})

    def announce(self, stepper: str, buckets: Sequence[Sequence[int]] = ()) -> None:
        """Report the engine of this process. Processes with different engines would wait for different sums."""
        if buckets:
            numbers = numbers_of(self._jobs)
            stepper = f"{stepper}, {[len({numbers[job] for job in bucket}) for bucket in buckets]} at a time"
        if stepper != self._stepper:
            self._stepper, self._rounds = stepper, []
        words = self._report.words
        self._report = self._report._replace(words=lambda: {**words(), "what steps it": stepper})

    def add_up(self, requests: Sequence[TensorRequest], sums: Any) -> Any:
        """Return the sums over all of the model, given the partial sums of this process."""
        sums = torch.as_tensor(sums)
        if self._number == len(self._rounds) or self._rounds[self._number].requests != requests:
            self._rounds[self._number :] = [self._round(requests, sums.device)]
        now = self._rounds[self._number]
        sums = now.added(sums)
        if self._number == 0:
            print_ = hashlib.sha256(now.layout + self._report.fingerprint).digest()
            self._agreement.reach(now.layout, self._report._replace(fingerprint=print_), sums, now.places, now.model)
        else:
            for axis, places in zip(self._agreement.axes, now.places, strict=True):
                if len(places):
                    sums[places] = all_reduced(axis, sums[places])
            if len(now.model):
                sums[now.model] = sums[now.model].sum()
        self._number += 1
        return now.answered(sums)

    def _round(self, requests: Sequence[TensorRequest], device: torch.device) -> Round:
        totals = Totals(self._jobs, requests, self._agreement.axes)
        return totals.on(device, totals.fingerprint(f"{self._described} {self._stepper}"))
