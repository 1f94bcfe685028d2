"""The GPU engine: Triton kernels, cut at the rules' yields; each launch takes all tensors through one phase."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from layerwise.engines import Candidate, Engine, Given, Job, Prepared

NAME = "gpu"
PROOF_VARIABLE = "LAYERWISE_GPU_PROOF"  # 0 uses the kernels without a proof
OLDEST = "3.5"  # older versions cannot make kernels with constants from functions


def candidate(rule: Engine) -> Candidate:
    """Return the row of a front's table. The kernels are compared with `rule`, which steps if they differ."""
    reason = why_not()
    if reason:
        return Candidate(NAME, None, reason)
    return Candidate(NAME, OnDemand(rule, rule), insisting=OnDemand(None, rule))


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
