"""Adafactor's requests to other ranks with shards of the tensors, and the places of the partial sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from layerwise.drive import Others, TensorRequest
from layerwise.engines.gpu.call import Call
from layerwise.engines.gpu.factored import Factored, FactoredJob, Stretch
from layerwise.rules.asks import Mean


class Requests:
    """The requests of both rounds. Partial sums are sent in the order of the tensor."""

    def __init__(self, call: Call, factored: Factored) -> None:
        jobs, layers, n = call.tables.jobs, call.tables.layers, call.tables.sums.shape[1]
        self._sums, self._device = call.tables.sums.view(-1), factored.store.device
        self._first: list[TensorRequest] = []
        self._last: list[TensorRequest] = []
        statistics: list[tuple[torch.dtype, np.ndarray]] = []
        for j, factored_job in factored.by_job.items():
            rows, cols = jobs[j].h.factored
            found = places_of(factored_job)
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


def places_of(laid: FactoredJob) -> list[tuple[torch.dtype, np.ndarray]]:
    """Return the places of row sums, of column sums, and of the totals of G and R, in the order of the tensor."""
    totals = _places(laid.totals, laid.layers).reshape(laid.layers, 2, laid.plane.matrices)
    return [
        *((sums.dtype, _places(sums, laid.layers)) for sums in laid.sums),
        *((laid.totals.dtype, totals[:, which].ravel()) for which in (0, 1)),
    ]


def _places(stretch: Stretch, layers: int) -> np.ndarray:
    first: np.ndarray = np.arange(layers * stretch.length) + stretch.first // stretch.dtype.itemsize
    return first
