"""Jobs on GPUs, stepped together: what is planned once, and what happens at a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from torch.autograd.graph import increment_version

from layerwise.drive import Others
from layerwise.engines import Counter, Engine, Job, Prepared, Stats
from layerwise.engines.gpu.adafactor import Adafactor
from layerwise.engines.gpu.call import OF_TORCH, Call, Sizes, Tables
from layerwise.engines.gpu.kernels import parts
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.gpu.layout import Layers, in_place_of, kind_of, operands, way_of
from layerwise.engines.gpu.letter import Letter, capturing
from layerwise.engines.gpu.method import Method
from layerwise.engines.gpu.ratio import Lamb, Lars
from layerwise.engines.parted import Parted
from layerwise.errors import EngineError
from layerwise.hyper import Adafactor as AdafactorHyper
from layerwise.hyper import Lamb as LambHyper
from layerwise.hyper import Lars as LarsHyper
from layerwise.rules.asks import Now

METHODS: dict[type, type[Method]] = {LambHyper: Lamb, LarsHyper: Lars, AdafactorHyper: Adafactor}
INTERPRETED = not isinstance(parts.add, triton.JITFunction)  # TRITON_INTERPRET was set: kernels run on the CPU
DEVICES = ("cuda", "xpu", *(("cpu",) if INTERPRETED else ()))


class GpuEngine:
    """Hands jobs to Triton's kernels, and to `otherwise` those they do not take; without one, it refuses them."""

    def __init__(self, otherwise: Engine | None, sizes: Sizes | None = None) -> None:
        self.otherwise, self.sizes = otherwise, sizes or Sizes()

    def prepare(self, jobs: Sequence[Job], layouts: Any = None) -> Prepared:
        reasons = [declined(job) for job in jobs]
        if any(reasons) and self.otherwise is None:
            raise EngineError(
                f"the fused engine does not take these tensors: {next(filter(None, reasons))}. Leave the choice of "
                "engine."
            )
        by_device: dict[Any, list[int]] = {}
        for i, (job, reason) in enumerate(zip(jobs, reasons, strict=True)):
            by_device.setdefault(None if reason else job.p.device, []).append(i)
        if len(by_device) == 1 and None not in by_device:
            return PreparedOnGpu(self, jobs)
        return self._parted(jobs, by_device)

    def _parted(self, jobs: Sequence[Job], by_device: Mapping[Any, list[int]]) -> Prepared:
        """Jobs of several devices, or that are not all ours; all of them are the other's where they step as one."""
        whole = partial(self._whole, jobs)
        if any(job.h.asks_of_model for job in jobs):
            return whole()
        shares = [(places, self._share([jobs[i] for i in places], device)) for device, places in by_device.items()]
        return Parted(len(jobs), shares, whole)

    def _share(self, jobs: Sequence[Job], device: torch.device | None) -> Prepared:
        return self._whole(jobs) if device is None else PreparedOnGpu(self, jobs)

    def _whole(self, jobs: Sequence[Job]) -> Prepared:
        if self.otherwise is None:
            raise EngineError("the fused engine does not take tensors of several devices at once. Leave the choice.")
        return self.otherwise.prepare(jobs)


def declined(job: Job) -> str:
    """Why the kernels do not take this job, or an empty string."""
    if type(job.h) not in METHODS:
        return f"there are no kernels for {type(job.h).__name__}"
    if job.p.device.type not in DEVICES:
        return f"the parameter is on {job.p.device}, where there is no Triton"
    stored = [job.p, *(x for x in job.state if x is not None)]
    for x in stored:
        if x.dtype not in OF_TORCH:
            return f"there are no kernels for {x.dtype}"
    method = METHODS[type(job.h)]
    if method.dims(job, operands(job, job.p, method.states(job))) > at.DIMS.value:
        return f"{tuple(job.p.shape)} lies in memory in more than {at.DIMS.value} dimensions"
    return method.declined(job)


class PreparedOnGpu:
    """Jobs on one device, and the tables they are laid out in when their gradients are seen."""

    notices = False
    counts = True
    layouts = None

    def __init__(self, engine: GpuEngine, jobs: Sequence[Job]) -> None:
        self._engine, self._jobs = engine, list(jobs)
        self._params = [job.p for job in self._jobs]
        self._device = self._params[0].device
        self._rule = METHODS[type(self._jobs[0].h)]
        self._states = [self._rule.states(job) for job in self._jobs]
        self._letter = Letter(len(self._jobs), self._device)
        self._strides: list[Any] = []  # of gradients; and those that are copied because of them
        self._copied: set[int] = set()
        self._seen: Any = None  # of gradients, when this was laid out
        self._laid: tuple[Tables, Method] | None = None
        self._nowhere: list[int] = []
        self._recorded: list[Any] = []  # what CUDA graphs replay

    def step(
        self, grads: Sequence[Tensor], nows: Sequence[Now], skip: Tensor | None = None, others: Others | None = None
    ) -> None:
        with torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext():
            if others is not None:
                others.told_how("the GPU engine")
            grads = self._readable(grads)
            places = np.fromiter(map(Tensor.data_ptr, grads), np.int64, len(grads))
            tables, method = self._laid_out(grads, places)
            self._letter.write(places, nows)
            method.step(Call(tables, skip, self._letter.scaled, others))
            self._count(nows, skip)
            increment_version(self._params)  # autograd does not see what kernels write
            if capturing(self._device):
                self._recorded.append((tables, method))

    def _readable(self, grads: Sequence[Tensor]) -> Sequence[Tensor]:
        """The gradients as kernels can read them."""
        strides = list(map(Tensor.stride, grads))
        if strides != self._strides:
            each = enumerate(zip(self._jobs, grads, self._states, strict=True))
            self._strides, self._copied = strides, {i for i, one in each if not self._takes(*one)}
        if any(map(Tensor.is_neg, grads)):
            grads = list(map(Tensor.resolve_neg, grads))
        if not self._copied:
            return grads
        pairs = enumerate(zip(grads, self._params, strict=True))
        return [in_place_of(g, p) if i in self._copied else g for i, (g, p) in pairs]

    def _takes(self, job: Job, g: Tensor, states: Sequence[Tensor | None]) -> bool:
        return bool(self._rule.dims(job, operands(job, g, states)) <= at.DIMS.value)

    def _laid_out(self, grads: Sequence[Tensor], places: np.ndarray) -> tuple[Tables, Method]:
        """Tables that fit these gradients."""
        seen = list(map(attrgetter("dtype"), grads)), self._strides, (places % 16 != 0).tobytes()
        if self._laid is None or seen != self._seen:
            if capturing(self._device):
                raise EngineError(
                    "a step cannot be recorded in a CUDA graph before one like it has been taken: with the same "
                    "parameters, and gradients of the same dtypes and strides. Take some steps first."
                )
            self._laid, self._seen = self._lay_out(grads), seen
        return self._laid

    def _lay_out(self, grads: Sequence[Tensor]) -> tuple[Tables, Method]:
        rule, sizes = self._rule, self._engine.sizes
        arrays = [operands(*each) for each in zip(self._jobs, grads, self._states, strict=True)]
        ways = [way_of(job, own) for job, own in zip(self._jobs, arrays, strict=True)]
        kinds = [kind_of(way, own, rule.apart(job)) for way, own, job in zip(ways, arrays, self._jobs, strict=True)]
        layers = Layers(self._jobs, ways, kinds, sizes.chunk, self._device)
        tables = Tables(self._jobs, self._states, rule.settings, layers, self._letter.there, sizes)
        self._nowhere = [j for j, way in enumerate(ways) if not way.bases]
        return tables, rule(tables, arrays)

    def _count(self, nows: Sequence[Now], skip: Tensor | None) -> None:
        """The steps of tensors without layers, of which no kernel knows."""
        for j in self._nowhere:
            t = nows[j].t
            if isinstance(t, Counter):
                t.step.add_(1 if skip is None else (~skip).to(t.step))

    def stats(self) -> list[Stats]:
        if self._laid is None:
            return []
        measured, layers = Measured(self._laid[0].answers), self._laid[0].layers
        return [Named(measured, layers.of(j), self._rule.measures(job)) for j, job in enumerate(self._jobs)]


class Measured:
    """What a step measured, brought to the host when it is asked for."""

    def __init__(self, answers: Tensor) -> None:
        self._answers = answers
        self._here: Any = None

    @property
    def here(self) -> Any:
        if self._here is None:
            self._here = self._answers.cpu().numpy()
        return self._here


class Named(Mapping[str, Any]):
    """Of one job, by name: a number for each layer."""

    def __init__(self, measured: Measured, layers: slice, columns: Mapping[str, int]) -> None:
        self._measured, self._layers, self._columns = measured, layers, columns

    def __getitem__(self, name: str) -> Any:
        return np.array(self._measured.here[self._layers, self._columns[name]])

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)
