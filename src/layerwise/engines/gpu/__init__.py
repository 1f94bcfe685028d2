"""The GPU engine: Triton kernels, cut at the rules' yields; each launch takes all tensors through one phase."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from layerwise.engines import Candidate, Engine, Given, Job, Prepared
from layerwise.errors import EngineError, sentence

if TYPE_CHECKING:
    from layerwise.engines.gpu.layout import Sizes
    from layerwise.engines.gpu.proof import Proof

OLDEST = "3.5"  # Triton's version: older ones cannot make kernels with constants from functions
PROOF_VARIABLE = "LAYERWISE_GPU_PROOF"  # 0 uses the kernels without a proof


def candidate(rule: Engine) -> Candidate:
    """Return the row of a front's table. The kernels are compared with `rule` before they step anything."""
    if reason := why_not():
        return Candidate("gpu", None, reason)
    return Candidate("gpu", GpuEngine(rule, insists=False), insisting=GpuEngine(rule))


class GpuEngine(Engine):
    """The engine that hands jobs of one device to Triton's kernels.

    Triton is imported for the first job on a GPU, because that takes long. Kernels show on each device that they agree
    with the `rule` before they step anything there; without a rule they are used unproven. An engine that `insists` has
    no other to step in: it takes tensors in the machine's memory too, if Triton's interpreter does.
    """

    name = "the GPU engine"

    def __init__(self, rule: Engine | None = None, sizes: Sizes | None = None, insists: bool = True) -> None:
        self._rule, self._sizes, self._insists = rule, sizes, insists

    @cached_property
    def proof(self) -> Proof | None:
        """The verdicts on kernels."""
        from layerwise.engines.gpu.proof import Proof

        return None if self._rule is None else Proof(self._rule, warns=not self._insists)

    def declines(self, jobs: Sequence[Job], given: Sequence[Given] | None = None) -> list[str]:
        return list(map(self._declined, jobs))

    def _declined(self, job: Job) -> str:
        if job.p.device.type == "cpu" and not self._insists:
            return "the parameter is not on a GPU"
        from layerwise.engines.gpu.kinds import declined

        return declined(job) or ("" if self.proof is None else self.proof.failed(job))

    def group(self, job: Job) -> Hashable:
        device: Hashable = job.p.device
        return device

    def prepare(self, jobs: Sequence[Job], layouts: Any = None) -> Prepared:
        from layerwise.engines.gpu.layout import Sizes
        from layerwise.engines.gpu.prepared import PreparedOnGpu

        return PreparedOnGpu(jobs, self._sizes or Sizes(), self.proof)


# ---- whether kernels can run here, without importing a framework


def proof_wanted() -> bool:
    """Return True if the environment leaves the proof on."""
    value = os.environ.get(PROOF_VARIABLE) or "1"
    if value not in ("0", "1"):
        raise EngineError(sentence(PROOF_VARIABLE, "0 or 1", value, "0 uses the GPU engine's kernels without a proof."))
    return value == "1"


def why_not() -> str:
    """Return the reason why the kernels are unavailable, or an empty string."""
    missing = [name for name in ("torch", "triton") if not _there(name)]
    if missing:
        return f"{' and '.join(missing)} cannot be imported, which PyTorch's builds for GPUs bring along"
    found = _version()
    return f"Triton {found} is too old, it has to be {OLDEST} or newer" if _numbers(found) < _numbers(OLDEST) else ""


def _there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # imported without a spec
        return True


def _version() -> str:
    """Return Triton's version, whichever of its packages is installed; an unknown one counts as new enough."""
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm"):
        with suppress(PackageNotFoundError):
            return version(name)
    return OLDEST


def _numbers(found: str) -> tuple[int, ...]:
    return tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
