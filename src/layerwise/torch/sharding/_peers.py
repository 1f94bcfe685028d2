"""Sums over the processes that hold other parts of the same tensors: one all-reduce a round completes all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layerwise.core.plan import Held
from layerwise.drive import TensorRequest, ToBring
from layerwise.drive.digits import sum_of_rows
from layerwise.rules.asks import Now
from layerwise.torch.sharding._agreement import Agreement, Arriving, Report, arrived, reduced
from layerwise.torch.sharding._totals import Round, Totals, numbers_of
from layerwise.torch.sharding._whole import Route, brought, routes_of


class Skips(NamedTuple):
    """The decision of this process to skip the step, and the reasons for which it would."""

    now: bool | Tensor  # or where the device learns the decision of all
    nonfinite: bool  # skip_nonfinite
    scaler: bool  # found_inf of a GradScaler

    def words(self) -> dict[str, Any]:
        """Return the part that must be the same on all processes, in words."""
        return {"skip_nonfinite": self.nonfinite, "found_inf of a GradScaler": "there" if self.scaler else "missing"}


class Peers:
    """Adds up the sums of jobs that are stepped together."""

    def __init__(self, agreement: Agreement, jobs: Sequence[Held], described: str) -> None:
        self._agreement, self._jobs, self._described = agreement, jobs, f"{described} {agreement.words}"
        self._rounds: list[Round] = []
        self._routes: dict[tuple[int, ...], list[Route]] = {}  # by the jobs with parts of the tensors
        self._brings = False  # in this step
        self._stepper = ""
        self._alone = False  # whether the last step was taken, with its first message alone
        self._agreeing: Callable[[], None] | None = None  # waits for the first message, while that is on its way

    def begin(self, nows: Sequence[Now], skips: Skips, words: Callable[[], Mapping[str, Any]]) -> None:
        """Begin a step, with this process's knowledge of it."""
        # What is known on the device alone is not compared, and nan is not the same even as itself.
        numbers = [tuple(x if isinstance(x, (int, float)) and x == x else 0 for x in now) for now in nows]
        fingerprint = str(hash((*numbers, skips.nonfinite, skips.scaler))).encode()
        self._number, self._brings, self._agreeing = 0, False, None
        self._report = Report(fingerprint, skips.now, lambda: {**words(), **skips.words()}, self._alone)
        self._alone = False

    def announce(self, stepper: str, buckets: Sequence[Sequence[int]] = ()) -> None:
        """Report the engine of this process. Processes with different engines would wait for different sums."""
        if buckets:
            numbers = numbers_of(self._jobs)
            stepper = f"{stepper}, {[len({numbers[job] for job in bucket}) for bucket in buckets]} at a time"
        if stepper != self._stepper:
            self._stepper, self._rounds = stepper, []
            self._report = self._report._replace(alone=False)
        words = self._report.words
        self._report = self._report._replace(words=lambda: {**words(), "what steps it": stepper})

    def taken(self) -> None:
        """Note that the step has come to its end."""
        self._alone = self._number == 1 and not self._brings

    def add_up(self, requests: Sequence[TensorRequest], sums: Any) -> Any:
        """Return the sums over all of the model, given the partial sums of this process."""
        return self.send(requests, sums)()

    def send(self, requests: Sequence[TensorRequest], sums: Any) -> Callable[[], Any]:
        """Send the partial sums of this process, and return a generator that waits for the sums over all of the model.

        Nothing else is sent before the first message has arrived: processes that disagree would send messages of other
        lengths, or none.
        """
        self._agree()
        sums = torch.as_tensor(sums)
        if self._number == len(self._rounds) or self._rounds[self._number].requests != requests:
            self._rounds[self._number :] = [self._round(requests, sums.device)]
            self._report = self._report._replace(alone=False)
        now, first = self._rounds[self._number], self._number == 0
        sums = now.added(sums)
        self._number += 1
        arriving = self._first(now, sums) if first else self._completed(now, sums)
        next(arriving, None)
        wait = partial(arrived, arriving)
        if first:
            self._agreeing = wait

        def totals() -> Any:
            self._agree() if first else wait()
            return now.answered(sums)

        return totals

    def bring(self, wholes: Sequence[ToBring]) -> list[Tensor]:
        """Return this process's parts of what the works make of whole tensors."""
        self._agree()
        if not self._brings:
            self._brings = True
            self._report = self._report._replace(alone=False)
        found: list[Tensor] = [one.part for one in wholes]
        for dtype in sorted({one.part.dtype for one in wholes}, key=str):
            places = [i for i, one in enumerate(wholes) if one.part.dtype == dtype]
            for i, made in zip(places, self._brought([wholes[i] for i in places]), strict=True):
                found[i] = made
        return found

    def _brought(self, wholes: Sequence[ToBring]) -> Iterator[Tensor]:
        """Yield the same of tensors of one dtype, of which this process may have several parts."""
        numbers = numbers_of(self._jobs)
        tensors = [list(some) for _, some in groupby(wholes, lambda one: numbers[one.job])]
        firsts = tuple(some[0].job for some in tensors)
        if firsts not in self._routes:
            self._routes[firsts] = routes_of([self._jobs[job] for job in firsts], self._agreement.axes)
        parts = [torch.cat([one.part.reshape(-1) for one in some]) for some in tensors]
        works = [some[0].work for some in tensors]
        made = brought(self._agreement.axes, self._routes[firsts], parts, works)
        for some, own in zip(tensors, made, strict=True):
            for one, x in zip(some, torch.split(own, [one.part.numel() for one in some]), strict=True):
                yield x.view(one.part.shape)

    def _agree(self) -> None:
        """Wait for the first message, if it is on its way."""
        if self._agreeing is not None:
            wait, self._agreeing = self._agreeing, None
            wait()

    def _first(self, now: Round, sums: Tensor) -> Arriving[None]:
        print_ = hashlib.sha256(now.layout + self._report.fingerprint).digest()
        report = self._report._replace(fingerprint=print_)
        return self._agreement.reach(now.layout, report, sums, now.places, now.model)

    def _completed(self, now: Round, sums: Tensor) -> Arriving[None]:
        for axis, places in zip(self._agreement.axes, now.places, strict=True):
            if len(places):
                sums[places] = yield from reduced(axis, sums[places])
        if len(now.model):
            sums[now.model] = sum_of_rows(torch, sums[now.model])

    def _round(self, requests: Sequence[TensorRequest], device: torch.device) -> Round:
        totals = Totals(self._jobs, requests, self._agreement.axes)
        return totals.on(device, f"{self._described} {self._stepper}")
