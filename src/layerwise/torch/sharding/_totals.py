"""The totals of a round: the numbers that the partial sums of this rank, and of others, are added to."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from layerwise.core.plan import Box, Held
from layerwise.drive import TensorRequest
from layerwise.layout import Piece
from layerwise.rules.asks import ModelSum
from layerwise.torch.sharding._cuts import Axis
from layerwise.torch.sharding._stretches import Spread, boxes_of, seen

Asked = tuple[Held, TensorRequest, int]  # a request of a part, and where its partial sums begin


class Cells:
    """The numbers that a request's total has: one for each entry along the dimensions that it does not run over."""

    def __init__(self, piece: Piece, q: TensorRequest) -> None:
        self._piece, self._dims, self._once = piece, {*q.dims, *q.once}, q.once  # along `once` numbers repeat
        shape = tuple(1 if d in self._dims else n for d, n in enumerate(seen(piece)))
        self._all = np.arange(prod(shape)).reshape(shape)

    def of(self, box: Box) -> np.ndarray:
        """Return the numbers of the cells to which a box adds, in its own order."""
        size = tuple(1 if d in self._dims else n for d, n in enumerate(box.size))
        found: np.ndarray = box.of(self._all, size).ravel()
        return found

    def counts(self, box: Box) -> bool:
        """Return True if a box is the one, among those with the same numbers, that adds them."""
        return all(box.origin[d] == 0 for d in self._once)

    def shared(self, spread: Spread) -> np.ndarray:
        """Return the cells to which several ranks add, and a single one: all ranks then know the number."""
        if self._all.size == 1:
            return np.zeros(1, np.int64)
        ranks = np.zeros(self._all.size, np.int32)
        for stretches in spread.ranks:
            touched = [self.of(box) for one in stretches for box, _ in boxes_of(self._piece, one)]
            if touched:
                ranks[np.unique(np.concatenate(touched))] += 1
        return np.flatnonzero(ranks > 1)


class Totals:
    """The numbers of one round, of which this rank has partial sums.

    A piece has one for each entry along the dimensions that are not summed. Its boxes, on this rank and on others, have
    them in common; a part that is the only one here has its own, and others add to all of them or to none.
    """

    def __init__(self, jobs: Sequence[Held], requests: Sequence[TensorRequest], axes: Sequence[Axis]) -> None:
        self.requests = list(requests)
        self._axes, self._length = axes, 0
        self._places: list[list[np.ndarray]] = [[] for _ in axes]
        self._model: list[np.ndarray] = []
        self._labels: list[Hashable] = []
        self._into = np.arange(sum(q.length for q in requests))
        self._again: list[np.ndarray] = []  # partial sums that another box adds
        numbers, asked, at = numbers_of(jobs), Counter[int](), 0
        common: dict[Hashable, list[Asked]] = {}
        for q in requests:
            key = numbers[q.job], asked[q.job]
            asked[q.job] += 1
            if key not in common:
                self._labels.append((*key, q.request.__name__, q.dims))  # not how many: parts are uneven
            common.setdefault(key, []).append((jobs[q.job], q, at))
            at += q.length
        for each in sorted(common.values(), key=lambda each: each[0][0].box is not None):
            self._add(each)

    def _add(self, each: Sequence[Asked]) -> None:
        held, q, _ = each[0]
        others, touched = self._cells(each)
        known = np.unique(np.concatenate([others, *touched]))
        own = self._numbered(q, len(known) * q.digits).reshape(q.digits, len(known))
        for (_, request, at), some in zip(each, touched, strict=True):
            self._into[at : at + request.length] = own[:, np.searchsorted(known, some)].ravel()
        for axis, places in zip(self._axes, self._places, strict=True):
            if any(other == axis and (d is None or d in q.dims) for other, d in held.axes):
                places.append(own[:, np.searchsorted(known, others)].ravel())

    def _cells(self, each: Sequence[Asked]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the cells of a piece's total to which others may add, and those to which each part here does."""
        held, q, _ = each[0]
        boxes = [one.box for one, _, _ in each if one.box is not None]
        if not boxes:
            all_of_them = np.arange(q.length // q.digits)
            return all_of_them, [all_of_them]
        cells = Cells(held.piece, q)
        for box, (_, request, at) in zip(boxes, each, strict=True):
            if not cells.counts(box):
                self._again.append(np.arange(at, at + request.length))
        return cells.shared(held.spread), list(map(cells.of, boxes))

    def _numbered(self, q: TensorRequest, length: int) -> np.ndarray:
        """Return so many new numbers."""
        own = np.arange(self._length, self._length + length)
        self._length += length
        if q.request is ModelSum:
            self._model.append(own)
        return own

    def on(self, device: torch.device, described: str) -> Round:
        """Return the destinations of sums, on their device, with a hash that must be the same on all ranks."""

        def there(numbers: Sequence[np.ndarray]) -> Tensor:
            return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *numbers])).to(device)

        alike = self._length == len(self._into) and bool((self._into == np.arange(self._length)).all())
        into = None if alike and not self._again else there([self._into])
        places = [there(one) for one in self._places]
        tensors = len(self._model)
        model = there(self._model).view(tensors, -1 if tensors else 0)
        layout = hashlib.sha256(f"{described} {self._labels}".encode()).digest()
        return Round(self.requests, places, model, layout, into, there(self._again), self._length)


@dataclass(frozen=True)
class Round:
    """The destinations of the partial sums of one round."""

    requests: list[TensorRequest]
    places: list[Tensor]  # which numbers are added up over each axis
    model: Tensor  # which make the model's sum: a row for each tensor
    layout: bytes
    into: Tensor | None  # the number that each partial sum is added to; None: each has its own, in their order
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


def numbers_of(jobs: Sequence[Held]) -> list[int]:
    """Return a number for each job that is the same on all ranks: boxes of one piece have one together."""
    known: dict[Hashable, int] = {}
    each = [i if held.box is None else (held.spread, held.number) for i, held in enumerate(jobs)]
    return [known.setdefault(one, len(known)) for one in each]
