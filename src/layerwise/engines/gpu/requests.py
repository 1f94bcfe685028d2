"""Requests to other ranks with shards of the tensors for statistics by rows and columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from layerwise.drive import TensorRequest
from layerwise.engines.gpu.call import Call
from layerwise.engines.gpu.factored import Factored, FactoredJob, Stretch
from layerwise.engines.programs import MEASURED, STATISTICS, requests_of


class Statistics:
    """The statistics whose sums other ranks complete, and their places. They are sent in the order of the tensor."""

    def __init__(self, call: Call, factored: Factored) -> None:
        jobs, self._device = call.tables.jobs, factored.store.device
        self.requests: list[TensorRequest] = []
        found: list[tuple[torch.dtype, np.ndarray]] = []
        for j, factored_job in factored.by_job.items():
            own = places_of(factored_job)
            for mean, (_, places) in zip(requests_of(jobs[j])[MEASURED][:STATISTICS], own, strict=True):
                self.requests.append(call.tensor_request(j, mean, len(places)))
            found += own
        none = np.zeros(0, np.int64)
        kinds = np.concatenate([none, *(np.full(len(places), dtype.itemsize) for dtype, places in found)])
        places = np.concatenate([none, *(places for _, places in found)])
        self._stores = [
            (factored.store.view(dtype), self._on_device([of]), self._on_device([places[of]]))
            for dtype in (torch.float32, torch.float64)
            for of in (np.flatnonzero(kinds == dtype.itemsize),)
        ]
        self._all = torch.arange(len(places), device=self._device)
        self._totals = torch.zeros(0)

    def _on_device(self, places: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *places])).to(self._device)

    def gathered(self) -> tuple[Tensor, Tensor]:
        """Return the partial sums, which the totals replace, and their places there."""
        self._totals = torch.zeros(len(self._all), dtype=torch.float64, device=self._device)
        for store, of, places in self._stores:
            self._totals[of] = store[places].double()
        return self._totals, self._all

    def put_back(self) -> None:
        """Write the totals to the places of the statistics."""
        for store, of, places in self._stores:
            store[places] = self._totals[of].to(store.dtype)


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
