"""A prepared step of the jobs on one device: its tables and its launches."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from layerwise.drivers import OtherRanks
from layerwise.engines import KEPT, Job, Stats
from layerwise.engines.addresses import CheckedInPython
from layerwise.engines.gpu.kernels.tables import ANSWERS, REPORTED
from layerwise.engines.gpu.layout import ChunkSizes, has_same_strides, layer_counts
from layerwise.engines.gpu.passes import LaunchInputs, Passes
from layerwise.engines.gpu.proof import Proof
from layerwise.engines.gpu.specialization import kind_of
from layerwise.engines.gpu.step_params import StepParams, capturing
from layerwise.engines.gpu.tables import Tables
from layerwise.engines.programs import JobMeasurements
from layerwise.errors import EngineError
from layerwise.rules.requests import Array, Now

FIRST = (
    "a CUDA graph cannot capture this step before a step like it has run: with the same parameters, gradients of the "
    "same dtypes, strides and alignment, and a GradScaler if there will be one. Take some steps first."
)


class PreparedOnGpu(CheckedInPython):
    """A prepared step of the jobs on one device; tables are created when the layout of gradients is known.

    A step raises `ArraysChanged` if kernels that it needs for the first time fail their `proof`.
    """

    counts = True
    layouts = None  # a CUDA graph may replay them

    def __init__(self, jobs: Sequence[Job], sizes: ChunkSizes, proof: Proof | None) -> None:
        self._jobs, self._sizes, self._proof = list(jobs), sizes, proof
        super().__init__(jobs)
        self._params = [job.p for job in self._jobs]
        self._device = self._params[0].device
        self._step_params = StepParams(self._jobs, self._device)
        layers = sum(layer_counts(job)[0] for job in self._jobs)
        self._answers = torch.zeros((layers, ANSWERS.value), dtype=torch.float64, device=self._device)
        self._layouts: dict[Hashable, Passes] = {}  # by the gradients' layout, the most recently used at the end
        self._seen: Hashable = None  # of the gradients of the last step
        self._laid: Passes | None = None  # for these
        self._recorded: list[Any] = []  # replayed by CUDA graphs

    def step(
        self, grads: Sequence[Tensor], nows: Sequence[Now], skip: Tensor | None = None, others: OtherRanks | None = None
    ) -> None:
        self.check(grads)
        with torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext():
            skip = None if skip is None else skip.to(self._device)  # another device may have found a failure
            places = _places(grads)
            laid = self._laid_out(grads, places, others is not None)
            if laid.copied:
                grads = self._readable(grads, laid.copied)
                places = _places(grads)
            self._step_params.write(nows)
            call = LaunchInputs(laid.tables, skip, self._step_params.scaled, others)
            if call.variant not in laid.variants:
                self._first(call, grads)
            if others is not None:
                others.announce("the GPU engine")
            self._step_params.send(places)
            laid.step(call)
            increment_version(self._params)  # autograd does not see what kernels write
            self._mark(laid, call)

    def _first(self, call: LaunchInputs, grads: Sequence[Tensor]) -> None:
        """Make sure that kernels that are needed for the first time may be used."""
        if capturing(self._device):
            raise EngineError(FIRST)
        if self._proof is not None:
            given = list(zip(self._jobs, grads, strict=True))
            self._proof.check(given, call, partial(PreparedOnGpu, sizes=self._sizes, proof=None))

    def _mark(self, laid: Passes, call: LaunchInputs) -> None:
        """Keep the step's memory alive for as long as the device may need it."""
        laid.variants.add(call.variant)
        stream = stream_of(self._device)
        if capturing(self._device):
            self._recorded.append(laid)
        elif stream is not None:
            laid.tables.keep_for_stream(stream)

    def _readable(self, grads: Sequence[Tensor], copied: set[int]) -> list[Tensor]:
        """Return the gradients; those that kernels cannot read in place are copied to the parameters' layout."""
        found = list(grads)
        for i in copied:
            g, p = grads[i], self._params[i]
            found[i] = torch.empty_strided(p.shape, p.stride(), dtype=g.dtype, device=g.device).copy_(g)
        return found

    def _laid_out(self, grads: Sequence[Tensor], places: np.ndarray, shared: bool) -> Passes:
        """Return the tables for these gradients. A few are kept, because gradients may alternate between layouts."""
        dtypes, strides = tuple(map(attrgetter("dtype"), grads)), tuple(map(Tensor.stride, grads))
        seen = dtypes, strides, (places % 16 != 0).tobytes(), shared
        if self._laid is None or seen != self._seen:
            laid = self._layouts.pop(seen, None)
            if laid is None:
                if capturing(self._device):
                    raise EngineError(FIRST)
                laid = self._lay_out(grads, shared)
            self._layouts[seen] = self._laid = laid
            self._seen = seen
            if len(self._layouts) > KEPT:
                del self._layouts[next(iter(self._layouts))]
        return self._laid

    def _lay_out(self, grads: Sequence[Tensor], shared: bool) -> Passes:
        jobs = self._jobs
        copied = {i for i, (job, g) in enumerate(zip(jobs, grads, strict=True)) if not has_same_strides(g, job.p)}
        kinds = [kind_of(job, g, self._sizes) for job, g in zip(jobs, self._readable(grads, copied), strict=True)]
        tables = Tables(jobs, kinds, self._step_params, self._sizes, self._answers, shared)
        tables.streams.add(stream_of(self._device))
        return Passes(tables, copied)

    def stats(self) -> Sequence[Stats]:
        if self._laid is None:
            return []
        tables = self._laid.tables
        on_host = cache(lambda: self._answers[:, REPORTED.value :].cpu().numpy())  # copied when the first is read

        def read(layers: slice, place: int) -> Array:
            return on_host()[layers, place]

        each = enumerate(kind.program.stats for kind in tables.kinds)
        return [JobMeasurements(partial(read, tables.layers.layers_of_job(j)), names) for j, names in each]


def stream_of(device: torch.device) -> torch.cuda.Stream | None:
    """Return the stream for the device's launches; None on devices without streams."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def _places(grads: Sequence[Tensor]) -> np.ndarray:
    """Return the addresses of the gradients."""
    return np.fromiter(map(Tensor.data_ptr, grads), np.int64, len(grads))
