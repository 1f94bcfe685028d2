"""The GPU engine: the jobs that its kernels take, and their steps."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
import triton

from layerwise.engines import Engine, Given, Job, Prepared
from layerwise.engines.gpu.kernels import parts
from layerwise.engines.gpu.layout import OF_TORCH, Sizes, misplaced
from layerwise.engines.gpu.planes import is_factored, not_planes
from layerwise.engines.gpu.prepared import PreparedOnGpu
from layerwise.engines.gpu.program import states_of
from layerwise.engines.gpu.proof import Proof
from layerwise.engines.gpu.stored import arrays_of, unstorable
from layerwise.engines.programs import missing

INTERPRETED = not isinstance(parts.root, triton.JITFunction)  # TRITON_INTERPRET was set: kernels run on the CPU
BY_ADDRESS = (torch.Tensor, torch.nn.Parameter)  # the types of tensors that lie where they say
DEVICES = ("cuda", *(("cpu",) if INTERPRETED else ()))  # what is tested; ROCm calls itself cuda


class GpuEngine:
    """The engine that hands jobs of one device to Triton's kernels.

    With a `proof`, kernels show on each device that they agree with the rule before they step anything there. If they
    fail, `otherwise` steps, and without it that is an error.
    """

    name = "the GPU engine"

    def __init__(self, otherwise: Engine | None, sizes: Sizes | None = None, proof: Proof | None = None) -> None:
        self.otherwise, self.sizes, self.proof = otherwise, sizes or Sizes(), proof

    def declines(self, job: Job, given: Given | None = None) -> str:
        return declined(job)

    def group(self, job: Job) -> Hashable:
        device: Hashable = job.p.device
        return device

    def prepare(self, jobs: Sequence[Job], layouts: Any = None) -> Prepared:
        return PreparedOnGpu(jobs, self.otherwise, self.sizes, self.proof)


def declined(job: Job) -> str:
    """Return the reason why the kernels do not take this job, or an empty string."""
    if why := missing(job):
        return why
    stored = [job.p, *(x for x in job.state if x is not None)]
    for x in stored:
        if type(x) not in BY_ADDRESS:
            return f"{type(x).__name__} is a subclass of torch.Tensor, whose memory need not hold its numbers"
    if job.p.device.type not in DEVICES:
        return f"the parameter is on {job.p.device}, which Triton does not support"
    coded = [id(one.array) for one in arrays_of(job) if one.is_coded]
    for x in stored:
        if x.dtype not in OF_TORCH and id(x) not in coded:
            return f"there are no kernels for {x.dtype}"
    if why := misplaced(job, states_of(job)) or unstorable(job):
        return why
    return not_planes(job) if is_factored(job) else ""
