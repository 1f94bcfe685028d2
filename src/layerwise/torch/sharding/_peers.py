"""Sums over the processes that hold other parts of the same tensors: one all-reduce a round completes all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layerwise.core.plan import Held
from layerwise.drivers import TensorRequest, ToBring
from layerwise.rules.asks import Now
from layerwise.torch.sharding._agreement import Agreement, Report, reduced
from layerwise.torch.sharding._routes import Owners, Wave, waves_of
from layerwise.torch.sharding._totals import Round, numbers_of, round_of
from layerwise.torch.sharding._whole import brought


class Skips(NamedTuple):
    """The decision of this process to skip the step, and the reasons for which it would."""

    now: bool
    nonfinite: bool  # skip_nonfinite
    scaler: bool  # found_inf of a GradScaler


class Peers:
    """Adds up the sums of jobs that are stepped together."""

    def __init__(self, agreement: Agreement, jobs: Sequence[Held], described: str) -> None:
        self._agreement, self._jobs, self._described = agreement, jobs, f"{described} {agreement.words}"
        self._rounds: list[Round] = []
        self._axes = (*agreement.axes, *agreement.replicas)  # in an order that is the same on all ranks
        self._owners = Owners(self._axes)
        self._waves: dict[tuple[int, ...], list[Wave]] = {}  # by the jobs with parts of the tensors
        self._stepper = ""

    def begin(self, nows: Sequence[Now], skips: Skips, words: Callable[[], Mapping[str, Any]]) -> None:
        """Begin a step, with this process's knowledge of it."""
        # What is known on the device alone is not compared, and nan is not the same even as itself.
        numbers = [tuple(x if isinstance(x, (int, float)) and x == x else 0 for x in now) for now in nows]
        self._fingerprint = str(hash((*numbers, skips.nonfinite, skips.scaler))).encode()
        self._number, self._skips, self._words = 0, skips, words

    def announce(self, stepper: str, buckets: Sequence[Sequence[int]] = ()) -> None:
        """Report the engine of this process. Processes with different engines would wait for different sums."""
        if buckets:
            numbers = numbers_of(self._jobs)
            stepper = f"{stepper}, {[len({numbers[job] for job in bucket}) for bucket in buckets]} at a time"
        if stepper != self._stepper:
            self._stepper, self._rounds = stepper, []

    def add_up(self, requests: Sequence[TensorRequest], sums: Any) -> Any:
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

    def _report(self, now: Round) -> Report:
        """Return this process's report on the step whose first sums go to this round."""
        skips, words, stepper = self._skips, self._words, self._stepper
        said = {
            "skip_nonfinite": skips.nonfinite,
            "found_inf of a GradScaler": "there" if skips.scaler else "missing",
            "the engine": stepper,
        }
        print_ = hashlib.sha256(now.layout + self._fingerprint).digest()
        return Report(print_, skips.now, lambda: {**words(), **said})

    def bring(self, wholes: Sequence[ToBring]) -> list[Tensor]:
        """Return this process's parts of what the works make of whole tensors."""
        numbers, made = numbers_of(self._jobs), dict[int, Tensor]()
        for dtypes in sorted({_dtypes(one) for one in wholes}, key=str):
            alike = (one for one in wholes if _dtypes(one) == dtypes)
            tensors = [list(some) for _, some in groupby(alike, lambda one: numbers[one.job])]
            firsts = tuple(some[0].job for some in tensors)
            if firsts not in self._waves:
                routes = self._owners.routes([some[0] for some in tensors], [self._jobs[job] for job in firsts])
                self._waves[firsts] = waves_of(routes, self._axes)
            parts = [torch.cat([one.whole.terms.reshape(-1) for one in some]) for some in tensors]
            done = brought(self._waves[firsts], parts, [some[0].whole.work for some in tensors], *dtypes)
            for some, own in zip(tensors, done, strict=True):
                for one, x in zip(some, torch.split(own, [one.whole.terms.numel() for one in some]), strict=True):
                    made[one.job] = x.view(one.whole.terms.shape)
        return [made[one.job] for one in wholes]

    def _complete(self, now: Round, sums: Tensor) -> None:
        for axis, places in zip(self._agreement.axes, now.places, strict=True):
            if len(places):
                sums[places] = reduced(axis, sums[places])
        if len(now.model):
            sums[now.model] = sums[now.model].sum()


def _dtypes(one: ToBring) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtype of a tensor, and the one in which it is sent."""
    own, sent = one.whole.terms.dtype, one.whole.dtype
    return own, own if sent is None or own.is_complex else getattr(torch, sent)
