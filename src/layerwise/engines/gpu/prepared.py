"""A prepared step of the jobs on one device: the tables that it keeps, and its launches."""

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

from layerwise.drive import Others
from layerwise.engines import LAYOUTS, Counter, Engine, Job, Stats
from layerwise.engines.gpu.byrule import ByRule
from layerwise.engines.gpu.call import Call, Memory, Tables
from layerwise.engines.gpu.kinds import kind_of
from layerwise.engines.gpu.layout import Sizes, in_place_of, lies_like
from layerwise.engines.gpu.passes import Passes
from layerwise.engines.gpu.proof import Proof
from layerwise.engines.gpu.stats import Measured
from layerwise.engines.gpu.step_params import StepParams, capturing
from layerwise.engines.places import Watched
from layerwise.errors import EngineError
from layerwise.rules.asks import Now

FIRST = (
    "a step cannot be recorded in a CUDA graph before one like it has been taken: with the same parameters, gradients "
    "of the same dtypes, strides and alignment, and a GradScaler where there will be one. Take some steps first."
)


class LaidOut:
    """Tables that fit gradients of some dtypes, strides and alignment."""

    def __init__(self, tables: Tables, passes: Passes, copied: set[int], stream: Any) -> None:
        self.tables, self.passes = tables, passes
        self.copied = copied  # gradients that kernels cannot read as they lie
        self.variants: set[Hashable] = set()  # that have been stepped, so that their kernels are compiled
        self._streams = {stream}

    def used_on(self, stream: Any) -> None:
        """Keep the memory of all tables until this stream has used them, even if they are freed before."""
        if stream not in self._streams:
            self._streams.add(stream)
            for x in self.tables.held:
                x.record_stream(stream)


class PreparedOnGpu:
    """A prepared step of the jobs on one device; tables are made when the layout of gradients is known.

    If the kernels fail their `proof`, `otherwise` steps the jobs; if that is None, an error is raised.
    """

    counts = True
    layouts = None  # a CUDA graph may replay them
    ahead = None

    def __init__(self, jobs: Sequence[Job], otherwise: Engine | None, sizes: Sizes, proof: Proof | None) -> None:
        self._jobs, self._otherwise, self._sizes, self._proof = list(jobs), otherwise, sizes, proof
        self._params, self._watched = [job.p for job in self._jobs], Watched(self._jobs)
        self._device = self._params[0].device
        self._step_params = StepParams(self._jobs, self._device)
        self._memory: Memory | None = None
        self._layouts: dict[Hashable, LaidOut] = {}  # by the gradients' layout, the last used at the end
        self._seen: Hashable = None  # of the gradients of the last step
        self._laid: LaidOut | None = None  # for these
        self._nowhere: list[int] = []
        self._by_rule: ByRule | None = None
        self._recorded: list[Any] = []  # what CUDA graphs replay

    def check(self, grads: Sequence[Tensor], nows: Sequence[Now], skip: Tensor | None = None) -> None:
        """Raise `Changed` if an array has changed."""
        self._watched.check(grads)

    def step(
        self, grads: Sequence[Tensor], nows: Sequence[Now], skip: Tensor | None = None, others: Others | None = None
    ) -> None:
        self._watched.check(grads)
        with torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext():
            skip = None if skip is None else skip.to(self._device)  # another device may have found it
            if self._by_rule is None and not self._stepped(grads, nows, skip, others) and self._otherwise is not None:
                self._by_rule = ByRule(self._otherwise.prepare(self._jobs))
            if self._by_rule is not None:
                self._by_rule.step(grads, nows, skip, others)

    def _stepped(
        self, grads: Sequence[Tensor], nows: Sequence[Now], skip: Tensor | None, others: Others | None
    ) -> bool:
        """Take the step, unless the kernels fail their proof."""
        places = _places(grads)
        laid = self._laid_out(grads, places, others is not None)
        if laid.copied:
            grads = self._readable(grads, laid.copied)
            places = _places(grads)
        self._step_params.write(nows)
        call = Call(laid.tables, skip, self._step_params.scaled, others)
        if call.variant not in laid.variants and not self._first(laid, call, grads):
            return False
        if others is not None:
            others.announce("the GPU engine")
        self._step_params.send(places)
        laid.passes.step(call)
        self._count(nows, skip)
        increment_version(self._params)  # autograd does not see what kernels write
        self._mark(laid, call)
        return True

    def _first(self, laid: LaidOut, call: Call, grads: Sequence[Tensor]) -> bool:
        """Return True if kernels that are needed for the first time may be used."""
        if capturing(self._device):
            raise EngineError(FIRST)
        given = list(zip(self._jobs, grads, strict=True))
        kernels = partial(PreparedOnGpu, otherwise=None, sizes=self._sizes, proof=None)
        return self._proof is None or self._proof.passed(given, call, kernels, self._otherwise is None)

    def _mark(self, laid: LaidOut, call: Call) -> None:
        """Keep the step's memory alive for as long as the device may need it."""
        laid.variants.add(call.variant)
        stream = stream_of(self._device)
        if capturing(self._device):
            self._recorded.append(laid)
        elif stream is not None:
            laid.used_on(stream)

    def _readable(self, grads: Sequence[Tensor], copied: set[int]) -> list[Tensor]:
        """Return the gradients, copied if the kernels cannot read them in place."""
        pairs = enumerate(zip(grads, self._params, strict=True))
        return [in_place_of(g, p) if i in copied else g for i, (g, p) in pairs]

    def _laid_out(self, grads: Sequence[Tensor], places: np.ndarray, shared: bool) -> LaidOut:
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
            if len(self._layouts) > LAYOUTS:
                del self._layouts[next(iter(self._layouts))]
        return self._laid

    def _lay_out(self, grads: Sequence[Tensor], shared: bool) -> LaidOut:
        jobs = self._jobs
        copied = {i for i, (job, g) in enumerate(zip(jobs, grads, strict=True)) if not lies_like(g, job.p)}
        grads = self._readable(grads, copied)
        kinds = [kind_of(job, g, self._sizes) for job, g in zip(jobs, grads, strict=True)]
        tables = Tables(jobs, kinds, self._step_params, self._sizes, self._memory, shared)
        self._memory = tables.memory
        self._nowhere = [j for j in range(len(jobs)) if not tables.layers.count(j)]
        return LaidOut(tables, Passes(tables), copied, stream_of(self._device))

    def _count(self, nows: Sequence[Now], skip: Tensor | None) -> None:
        """Count the steps of tensors without layers, which no kernel sees."""
        for j in self._nowhere:
            t = nows[j].t
            if isinstance(t, Counter):
                t.step.add_(1 if skip is None else (~skip).to(t.step))

    def stats(self) -> Sequence[Stats]:
        if self._by_rule is not None:
            return self._by_rule.stats()
        if self._laid is None:
            return []
        tables = self._laid.tables
        on_host = cache(lambda: tables.answers.cpu().numpy())  # copied when the first is read
        return [Measured(on_host, tables.layers.of(j), kind.program.stats) for j, kind in enumerate(tables.kinds)]


def stream_of(device: torch.device) -> Any:
    """Return the stream for the device's launches; None on devices without streams."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def _places(grads: Sequence[Tensor]) -> Any:
    """Return the addresses of the gradients."""
    return np.fromiter(map(Tensor.data_ptr, grads), np.int64, len(grads))
