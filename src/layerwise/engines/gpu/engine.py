"""Which jobs the kernels take, and who steps the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import triton

from layerwise.engines import Engine, Job, Prepared
from layerwise.engines.gpu.call import OF_TORCH, Sizes
from layerwise.engines.gpu.kernels import parts
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.gpu.layout import operands
from layerwise.engines.gpu.prepared import METHODS, PreparedOnGpu
from layerwise.engines.gpu.proof import Proof
from layerwise.engines.parted import Parted
from layerwise.errors import EngineError

INTERPRETED = not isinstance(parts.add_up, triton.JITFunction)  # TRITON_INTERPRET was set: kernels run on the CPU
BY_ADDRESS = (torch.Tensor, torch.nn.Parameter)  # the types of tensors that lie where they say
DEVICES = ("cuda", *(("cpu",) if INTERPRETED else ()))  # what is tested; ROCm calls itself cuda


class GpuEngine:
    """Hands jobs to Triton's kernels, and to `otherwise` those they do not take; without one, it refuses them.

    With a `proof`, kernels show on each device that they do what the rule does before they step anything there.
    """

    def __init__(self, otherwise: Engine | None, sizes: Sizes | None = None, proof: Proof | None = None) -> None:
        self.otherwise, self.sizes, self.proof = otherwise, sizes or Sizes(), proof

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
            return self._ours(jobs)
        return self._parted(jobs, by_device)

    def _parted(self, jobs: Sequence[Job], by_device: Mapping[Any, list[int]]) -> Prepared:
        """Jobs of several devices, or that are not all ours; all of them are the other's where they step as one."""
        whole = partial(self._whole, jobs)
        if any(job.h.asks_of_model for job in jobs):
            return whole()
        shares = [(places, self._share([jobs[i] for i in places], device)) for device, places in by_device.items()]
        return Parted(len(jobs), shares, whole)

    def _share(self, jobs: Sequence[Job], device: torch.device | None) -> Prepared:
        return self._whole(jobs) if device is None else self._ours(jobs)

    def _ours(self, jobs: Sequence[Job]) -> Prepared:
        return PreparedOnGpu(jobs, self.otherwise, self.sizes, self.proof)

    def _whole(self, jobs: Sequence[Job]) -> Prepared:
        if self.otherwise is None:
            raise EngineError("the fused engine does not take tensors of several devices at once. Leave the choice.")
        return self.otherwise.prepare(jobs)


def declined(job: Job) -> str:
    """Why the kernels do not take this job, or an empty string."""
    if type(job.h) not in METHODS:
        return f"there are no kernels for {type(job.h).__name__}"
    stored = [job.p, *(x for x in job.state if x is not None)]
    for x in stored:
        if type(x) not in BY_ADDRESS:
            return f"{type(x).__name__} is a subclass of torch.Tensor, whose memory need not hold its numbers"
    if job.p.device.type not in DEVICES:
        return f"the parameter is on {job.p.device}, where there is no Triton"
    for x in stored:
        if x.dtype not in OF_TORCH:
            return f"there are no kernels for {x.dtype}"
    method = METHODS[type(job.h)]
    if method.dims(job, operands(job, job.p, method.states(job))) > at.DIMS.value:
        return f"{tuple(job.p.shape)} lies in memory in more than {at.DIMS.value} dimensions"
    return method.declined(job)
