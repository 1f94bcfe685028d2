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

from layerwise.core.plan import Held
from layerwise.drivers import TensorRequest
from layerwise.rules.asks import ModelSum
from layerwise.torch.sharding._cuts import Axis
from layerwise.torch.sharding._flat import seen


@dataclass(frozen=True)
class Round:
    """The destinations of the partial sums of one round."""

    requests: list[TensorRequest]
    places: list[Tensor]  # which numbers are added up over each axis
    model: Tensor  # which make the model's sum: one of each tensor
    layout: bytes  # a hash of them that must be the same on all ranks
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


def round_of(
    jobs: Sequence[Held], requests: Sequence[TensorRequest], axes: Sequence[Axis], device: torch.device, described: str
) -> Round:
    """Return the round of these requests.

    A request of a piece has one total for each entry along the dimensions that are not summed. Boxes of the piece, on
    this rank and on others, have them in common; a part that is the only one here has its own, and others add to all of
    them or to none.
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
        if q.request is ModelSum:
            model.append(own)

    def there(each: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *each])).to(device)

    # Not how many numbers each has: parts are uneven.
    labels = [(*key, each[0][1].request.__name__, each[0][1].dims) for key, each in common.items()]
    layout = hashlib.sha256(f"{described} {labels}".encode()).digest()
    alike = np.array_equal(into, np.arange(length)) and not again
    destinations = None if alike else there([into])
    return Round(list(requests), list(map(there, places)), there(model), layout, destinations, there(again), length)


def _common(
    jobs: Sequence[Held], requests: Sequence[TensorRequest]
) -> dict[tuple[int, int], list[tuple[Held, TensorRequest, slice]]]:
    """Return the requests of parts by what they are requests of: a tensor's number, and how many it has before."""
    numbers, asked, at = numbers_of(jobs), Counter[int](), 0
    found: dict[tuple[int, int], list[tuple[Held, TensorRequest, slice]]] = {}
    for q in requests:
        found.setdefault((numbers[q.job], asked[q.job]), []).append((jobs[q.job], q, slice(at, at + q.length)))
        asked[q.job] += 1
        at += q.length
    return found


def _cells(held: Held, q: TensorRequest) -> np.ndarray:
    """Return the places of a request's totals, one for each entry along the dimensions that it does not run over."""
    if held.box is None:
        return np.arange(q.length)
    shape = tuple(1 if d in q.dims or d in q.once else n for d, n in enumerate(seen(held.piece)))
    return np.arange(prod(shape)).reshape(shape)


def _touched(held: Held, q: TensorRequest, cells: np.ndarray) -> np.ndarray:
    """Return the places of those to which a part adds, in its own order."""
    if held.box is None:
        return cells
    size = tuple(1 if d in q.dims or d in q.once else n for d, n in enumerate(held.box.size))
    found: np.ndarray = held.box.of(cells, size).ravel()
    return found


def numbers_of(jobs: Sequence[Held]) -> list[int]:
    """Return a number for each job that is the same on all ranks: boxes of one piece have one together."""
    known: dict[Hashable, int] = {}
    each = [i if held.box is None else (held.spread, held.number) for i, held in enumerate(jobs)]
    return [known.setdefault(one, len(known)) for one in each]
