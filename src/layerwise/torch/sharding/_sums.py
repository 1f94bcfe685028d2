"""Sums over the processes that hold other parts of the same tensors: one all-reduce per round completes all of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from layerwise.core.plan import LocalPart
from layerwise.drivers import GatherRequest, SharedRequest
from layerwise.rules.requests import Array, ModelSquares, Now
from layerwise.torch.sharding._agreement import Agreement, Report, reduced
from layerwise.torch.sharding._cuts import Axis, cuttable_shape
from layerwise.torch.sharding._routes import Owners, Wave, waves_of
from layerwise.torch.sharding._whole_tensors import exchange_wholes


class SkipDecision(NamedTuple):
    """The decision of this process to skip the step, and the possible reasons for it."""

    now: bool
    nonfinite: bool  # skip_nonfinite
    scaler: bool  # found_inf of a GradScaler


class RankSums:
    """Adds up the sums of jobs that are stepped together."""

    def __init__(self, agreement: Agreement, jobs: Sequence[LocalPart], described: str) -> None:
        self._agreement, self._jobs, self._described = agreement, jobs, f"{described} {agreement.words}"
        self._rounds: list[SumRound] = []
        self._axes = (*agreement.axes, *agreement.replicas)  # in an order that is the same on all ranks
        self._owners = Owners(self._axes)
        self._waves: dict[tuple[int, ...], list[Wave]] = {}  # by the jobs with parts of the tensors
        self._stepper = ""

    def begin(self, nows: Sequence[Now], skips: SkipDecision, words: Callable[[], Mapping[str, object]]) -> None:
        """Begin a step, with this process's knowledge of it."""
        # Values that only the device knows are not compared, and nan does not equal itself.
        numbers = [tuple(x if isinstance(x, (int, float)) and x == x else 0 for x in now) for now in nows]
        self._fingerprint = str(hash((*numbers, skips.nonfinite, skips.scaler))).encode()
        self._number, self._skips, self._words = 0, skips, words

    def announce(self, stepper: str, buckets: Sequence[Sequence[int]] = ()) -> None:
        """Report the engine of this process. Processes with different engines would wait for different sums."""
        if buckets:
            numbers = piece_numbers(self._jobs)
            stepper = f"{stepper}, {[len({numbers[job] for job in bucket}) for bucket in buckets]} at a time"
        if stepper != self._stepper:
            self._stepper, self._rounds = stepper, []

    def add_up(self, requests: Sequence[SharedRequest], sums: Array) -> Array:
        """Return the sums over all of the model, given the partial sums of this process."""
        sums, number = torch.as_tensor(sums), self._number
        self._number += 1
        known = number < len(self._rounds) and self._rounds[number].requests == requests
        if not known:
            described = f"{self._described} {self._stepper}"
            self._rounds[number:] = [round_of(self._jobs, requests, self._agreement.axes, sums.device, described)]
        now = self._rounds[number]
        sums = now.added(sums)
        if number:
            self._complete(now, sums)
        else:
            self._agreement.reach(now.layout, self._report(now), sums, now.places, now.model)
        return now.answered(sums)

    def _report(self, now: SumRound) -> Report:
        """Return this process's report on the step whose first sums belong to this round."""
        skips, words, stepper = self._skips, self._words, self._stepper
        said = {
            "skip_nonfinite": skips.nonfinite,
            "found_inf of a GradScaler": "present" if skips.scaler else "missing",
            "the engine": stepper,
        }
        print_ = hashlib.sha256(now.layout + self._fingerprint).digest()
        return Report(print_, skips.now, lambda: {**words(), **said})

    def work_on_wholes(self, wholes: Sequence[GatherRequest]) -> list[Tensor]:
        """Return this process's parts of the works' results on whole tensors."""
        numbers, made = piece_numbers(self._jobs), dict[int, Tensor]()
        for dtypes in sorted({_dtypes(one) for one in wholes}, key=str):
            alike = (one for one in wholes if _dtypes(one) == dtypes)
            tensors = [list(some) for _, some in groupby(alike, lambda one: numbers[one.job])]
            firsts = tuple(some[0].job for some in tensors)
            if firsts not in self._waves:
                routes = self._owners.routes([some[0] for some in tensors], [self._jobs[job] for job in firsts])
                self._waves[firsts] = waves_of(routes, self._axes)
            parts = [torch.cat([one.whole.terms.reshape(-1) for one in some]) for some in tensors]
            done = exchange_wholes(self._waves[firsts], parts, [some[0].whole.work for some in tensors], *dtypes)
            for some, own in zip(tensors, done, strict=True):
                for one, x in zip(some, torch.split(own, [one.whole.terms.numel() for one in some]), strict=True):
                    made[one.job] = x.view(one.whole.terms.shape)
        return [made[one.job] for one in wholes]

    def _complete(self, now: SumRound, sums: Tensor) -> None:
        for axis, places in zip(self._agreement.axes, now.places, strict=True):
            if len(places):
                sums[places] = reduced(axis, sums[places])
        if len(now.model):
            sums[now.model] = sums[now.model].sum()


def _dtypes(one: GatherRequest) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtype of a tensor, and the one in which it is sent."""
    own, sent = one.whole.terms.dtype, one.whole.dtype
    return own, own if sent is None or own.is_complex else getattr(torch, sent)


@dataclass(frozen=True)
class SumRound:
    """The destinations of the partial sums of one round."""

    requests: list[SharedRequest]
    places: list[Tensor]  # the numbers that are added up over each axis
    model: Tensor  # the numbers that make up the model's sum: one of each tensor
    layout: bytes  # a hash of them that must be the same on all ranks
    into: Tensor | None  # the number to which each partial sum is added; None: each has its own, in order
    again: Tensor  # partial sums that another box adds
    length: int

    def added(self, sums: Tensor) -> Tensor:
        """Return the numbers with this rank's partial sums added; the given array may be overwritten."""
        if self.into is None:
            return sums
        sums[self.again] = 0
        return sums.new_zeros(self.length).index_add_(0, self.into, sums)

    def answered(self, totals: Tensor) -> Tensor:
        """Return the total that belongs to each partial sum."""
        return totals if self.into is None else totals[self.into]


def round_of(
    jobs: Sequence[LocalPart],
    requests: Sequence[SharedRequest],
    axes: Sequence[Axis],
    device: torch.device,
    described: str,
) -> SumRound:
    """Return the round of these requests.

    A request of a piece has one total for each entry along the dimensions that are not summed. Boxes of the piece, on
    this rank and on others, share them; a part that is the only local one has its own, and others add to all of them or
    to none.
    """
    common, length = _common(jobs, requests), 0
    into = np.arange(sum(q.length for q in requests))
    places: list[list[np.ndarray]] = [[] for _ in axes]
    model, again = list[np.ndarray](), list[np.ndarray]()
    for each in sorted(common.values(), key=lambda each: each[0][0].box is not None):
        held, q, _ = each[0]
        cells = _cells(held, q)
        own = length + np.arange(cells.size)
        length += own.size
        for part, _, run in each:
            into[run] = own[_touched(part, q, cells)]
            if part.box is not None and any(part.box.origin[d] for d in q.once):  # the first box with them adds them
                again.append(np.arange(run.start, run.stop))
        for axis, numbers_there in zip(axes, places, strict=True):
            if any(other == axis and (d is None or d in q.dims) for other, d in held.axes):
                numbers_there.append(own)
        if q.request is ModelSquares:
            model.append(own)

    def there(each: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *each])).to(device)

    # Not the number of totals: parts are uneven.
    labels = [(*key, each[0][1].request.__name__, each[0][1].dims) for key, each in common.items()]
    layout = hashlib.sha256(f"{described} {labels}".encode()).digest()
    alike = np.array_equal(into, np.arange(length)) and not again
    destinations = None if alike else there([into])
    return SumRound(list(requests), list(map(there, places)), there(model), layout, destinations, there(again), length)


def _common(
    jobs: Sequence[LocalPart], requests: Sequence[SharedRequest]
) -> dict[tuple[int, int], list[tuple[LocalPart, SharedRequest, slice]]]:
    """Return the requests of parts by the tensor and request that they belong to: a tensor's number, and how many come
    before.
    """
    numbers, asked, at = piece_numbers(jobs), Counter[int](), 0
    found: dict[tuple[int, int], list[tuple[LocalPart, SharedRequest, slice]]] = {}
    for q in requests:
        found.setdefault((numbers[q.job], asked[q.job]), []).append((jobs[q.job], q, slice(at, at + q.length)))
        asked[q.job] += 1
        at += q.length
    return found


def _cells(held: LocalPart, q: SharedRequest) -> np.ndarray:
    """Return the places of a request's totals, one for each entry along the dimensions that it does not run over."""
    if held.box is None:
        return np.arange(q.length)
    shape = tuple(1 if d in q.dims or d in q.once else n for d, n in enumerate(cuttable_shape(held.piece)))
    return np.arange(prod(shape)).reshape(shape)


def _touched(held: LocalPart, q: SharedRequest, cells: np.ndarray) -> np.ndarray:
    """Return the places of the totals to which a part adds, in its own order."""
    if held.box is None:
        return cells
    size = tuple(1 if d in q.dims or d in q.once else n for d, n in enumerate(held.box.size))
    found: np.ndarray = held.box.take_from(cells, size).ravel()
    return found


def piece_numbers(jobs: Sequence[LocalPart]) -> list[int]:
    """Return a number for each job that is the same on all ranks: boxes of one piece share one."""
    known: dict[Hashable, int] = {}
    each = [i if held.box is None else (held.spread, held.number) for i, held in enumerate(jobs)]
    return [known.setdefault(one, len(known)) for one in each]
