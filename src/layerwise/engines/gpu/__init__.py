"""The GPU engine: Triton kernels, cut at the rules' yields; each launch takes all tensors through one phase."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from layerwise.engines import Candidate, Engine, Job, PreparedJobs, StepInputs
from layerwise.engines.gpu.installed import reason_missing

if TYPE_CHECKING:
    from layerwise.engines.gpu.layout import ChunkSizes
    from layerwise.engines.gpu.proof import Proof


def candidate(rule: Engine) -> Candidate:
    """Return the row of an API's table. The kernels are compared with `rule` before they step anything."""
    if reason := reason_missing():
        return Candidate("gpu", None, reason)
    return Candidate("gpu", GpuEngine(rule, insists=False), required=GpuEngine(rule))


class GpuEngine(Engine):
    """The engine that hands jobs on one device to Triton's kernels.

    Triton is imported for the first job on a GPU, because that takes long. Kernels show on each device that they agree
    with the `rule` before they step anything there; without a rule they are used unproven. An engine that `insists` has
    no other to step in: it takes tensors in the machine's memory too, if Triton's interpreter does.
    """

    name = "the GPU engine"

    def __init__(self, rule: Engine | None = None, sizes: ChunkSizes | None = None, insists: bool = True) -> None:
        self._rule, self._sizes, self._insists = rule, sizes, insists

    @cached_property
    def proof(self) -> Proof | None:
        """The verdicts on kernels."""
        from layerwise.engines.gpu.proof import Proof

        return None if self._rule is None else Proof(self._rule, warns=not self._insists)

    def reasons_to_decline(self, jobs: Sequence[Job], given: Sequence[StepInputs] | None = None) -> list[str]:
        return list(map(self._declined, jobs))

    def _declined(self, job: Job) -> str:
        if job.p.device.type == "cpu" and not self._insists:
            return "the parameter is not on a GPU"
        from layerwise.engines.gpu.specialization import why_declined

        return why_declined(job) or ("" if self.proof is None else self.proof.why_failed(job))

    def groups(self, jobs: Sequence[Job]) -> Sequence[Hashable]:
        return [job.p.device for job in jobs]

    def prepare(self, jobs: Sequence[Job], layouts: object = None) -> PreparedJobs:
        from layerwise.engines.gpu.layout import ChunkSizes
        from layerwise.engines.gpu.prepared import PreparedOnGpu

        return PreparedOnGpu(jobs, self._sizes or ChunkSizes(), self.proof)
