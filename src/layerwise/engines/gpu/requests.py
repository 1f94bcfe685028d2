"""Adafactor's requests to other ranks with shards of the tensors, and the places of the partial sums."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from layerwise.drive import Others, TensorRequest
from layerwise.engines import Job
from layerwise.engines.gpu.call import Call
from layerwise.engines.gpu.factored import Factored, FactoredJob, Stretch
from layerwise.rules.asks import Mean


class Requests:
    """The requests of both rounds. Partial sums are sent in the order of the tensor, however it lies in memory."""

    def __init__(self, call: Call, factored: Factored) -> None:
        jobs, layers, n = call.tables.jobs, call.tables.layers, call.tables.sums.shape[1]
        self._sums, self._device = call.tables.sums.view(-1), factored.store.device
        self._first: list[TensorRequest] = []
        self._last: list[TensorRequest] = []
        statistics: list[tuple[torch.dtype, np.ndarray]] = []
        for j, factored_job in factored.by_job.items():
            rows, cols = jobs[j].h.factored
            found = places_of(jobs[j], factored_job)
            for dims, (_, places) in zip((cols, rows, rows + cols, rows), found, strict=True):
                self._first.append(call.tensor_request(j, Mean(None, dims), len(places)))
            statistics += found
        none = np.zeros(0, np.int64)
        kinds = np.concatenate([none, *(np.full(len(places), dtype.itemsize) for dtype, places in statistics)])
        places = np.concatenate([none, *(places for _, places in statistics)])
        self._statistics = [
            (factored.store.view(dtype), self._on_device([of]), self._on_device([places[of]]))
            for dtype in (torch.float32, torch.float64)
            for of in (np.flatnonzero(kinds == dtype.itemsize),)
        ]
        self._all = torch.arange(len(places), device=self._device)
        self._totals = torch.zeros(0)
        weights = [j for j, job in enumerate(jobs) if job.h.scale_parameter]
        unfactored = [j for j in range(len(jobs)) if j not in factored.by_job]
        self._first += [call.each_layer(j, Mean(None)) for j in (*weights, *unfactored)]
        self._last += [call.each_layer(j, Mean(None)) for j in factored.by_job]

        def of(some: Sequence[int], row: int) -> list[np.ndarray]:
            return [row * n + np.arange(layers.of(j).start, layers.of(j).stop) for j in some]

        self._measured = self._on_device([*of(weights, 0), *of(unfactored, 1)])
        self._updates = self._on_device(of([*factored.by_job], 1))

    def _on_device(self, places: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *places])).to(self._device)

    def first(self, call: Call, others: Others) -> None:
        self._totals = torch.zeros(len(self._all), dtype=torch.float64, device=self._device)
        for store, of, places in self._statistics:
            self._totals[of] = store[places].double()
        call.exchange(others, self._first, (self._totals, self._all), (self._sums, self._measured))
        self.again()

    def again(self) -> None:
        """Write the answers to the places of the statistics."""
        for store, of, places in self._statistics:
            store[places] = self._totals[of].to(store.dtype)

    def last(self, call: Call, others: Others) -> None:
        if self._last:
            call.exchange(others, self._last, (self._sums, self._updates))


def places_of(job: Job, factored_job: FactoredJob) -> list[tuple[torch.dtype, np.ndarray]]:
    """Return the places of row sums, of column sums, and of the totals of G and R, in the order of the tensor."""
    rows, cols = factored_job.sums if factored_job.plane.lines_are_rows else factored_job.sums[::-1]
    matrices, lines, entries = map(list, factored_job.plane.dims)
    of_rows, of_cols = (lines, entries) if factored_job.plane.lines_are_rows else (entries, lines)
    totals = _places(job, factored_job.totals, matrices)
    return [
        (rows.dtype, _places(job, rows, matrices + of_rows)),
        (cols.dtype, _places(job, cols, matrices + of_cols)),
        (factored_job.totals.dtype, totals),
        (factored_job.totals.dtype, totals + factored_job.totals.length // 2),
    ]


def _places(job: Job, stretch: Stretch, walked: Sequence[int]) -> np.ndarray:
    """Return the places in a stretch, walking along these dimensions, the last one fastest."""
    shape, step = job.p.shape, [0] * job.p.ndim
    for d, inner in _with_inner(walked):
        step[d] = prod(shape[i] for i in inner)
    for d, inner in _with_inner(job.block_dims):
        step[d] = stretch.length * prod(shape[i] for i in inner)
    places = np.array([stretch.first // stretch.dtype.itemsize])
    for d, n in enumerate(shape):
        if d in walked or d in job.block_dims:
            places = np.add.outer(places, np.arange(n) * step[d]).ravel()
    return places


def _with_inner(dims: Sequence[int]) -> list[tuple[int, Sequence[int]]]:
    return [(d, dims[k + 1 :]) for k, d in enumerate(dims)]
