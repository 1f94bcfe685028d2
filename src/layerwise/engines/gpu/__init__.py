"""The GPU engine: Triton kernels, cut at the rules' yields; each launch takes all tensors through one phase."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

from layerwise.engines import Candidate, Engine, Given, Job, Prepared
from layerwise.engines.gpu.installed import why_not

NAME = "gpu"


def candidate(rule: Engine) -> Candidate:
    """Return the row of a front's table. The kernels are compared with `rule`, which steps if they differ."""
    reason = why_not()
    if reason:
        return Candidate(NAME, None, reason)
    return Candidate(NAME, OnDemand(rule, rule), insisting=OnDemand(None, rule))


class OnDemand:
    """The engine, loaded for the first job on a GPU, because importing Triton takes long.

    `rule` is compared with the kernels before they step anything, and `otherwise` steps if they fail.
    """

    name = "the GPU engine"

    def __init__(self, otherwise: Engine | None, rule: Engine) -> None:
        self.otherwise, self.rule = otherwise, rule

    @cached_property
    def _engine(self) -> Engine:
        from layerwise.engines.gpu.engine import GpuEngine
        from layerwise.engines.gpu.proof import Proof

        return GpuEngine(self.otherwise, proof=Proof(self.rule))

    def declines(self, job: Job, given: Given | None = None) -> str:
        if self.otherwise is not None and job.p.device.type == "cpu":
            return "the parameter is not on a GPU"
        return self._engine.declines(job, given)

    def group(self, job: Job) -> Hashable:
        device: Hashable = job.p.device
        return device

    def prepare(self, jobs: Sequence[Job], layouts: Any = None) -> Prepared:
        return self._engine.prepare(jobs, layouts)
