"""The GPU engine: Triton kernels, cut where the rules yield, that take all tensors of a step in one launch a phase."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from layerwise.engines import Candidate, Engine, Job, Prepared

NAME = "gpu"
OLDEST = "3.4"  # whose language has what the kernels are written in


def candidate(otherwise: Engine) -> Candidate:
    """The row of a front's table. `otherwise` takes the jobs that this engine does not."""
    reason = why_not()
    if reason:
        return Candidate(NAME, None, reason)
    return Candidate(NAME, OnDemand(otherwise), insisting=OnDemand(None))


def why_not() -> str:
    """Why there are no kernels here, or an empty string."""
    missing = [name for name in ("torch", "triton") if not _there(name)]
    if missing:
        return f"{' and '.join(missing)} cannot be imported, which PyTorch's builds for GPUs bring along"
    found = _version()
    return f"Triton {found} is too old, it has to be {OLDEST} or newer" if _numbers(found) < _numbers(OLDEST) else ""


def _there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # imported, in a way that says nothing of where from
        return True


def _version() -> str:
    """Triton's, by whichever name it was installed; where that is not known, it is tried."""
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm"):
        with suppress(PackageNotFoundError):
            return version(name)
    return OLDEST


def _numbers(found: str) -> tuple[int, ...]:
    return tuple(int(part) for part in found.split(".")[:2] if part.isdigit())


class OnDemand:
    """The engine, which is loaded when there is something on a GPU: importing Triton takes its time."""

    def __init__(self, otherwise: Engine | None) -> None:
        self.otherwise = otherwise

    @cached_property
    def _engine(self) -> Engine:
        from layerwise.engines.gpu.engine import GpuEngine

        return GpuEngine(self.otherwise)

    def prepare(self, jobs: Sequence[Job], layouts: Any = None) -> Prepared:
        if self.otherwise is not None and all(job.p.device.type == "cpu" for job in jobs):
            return self.otherwise.prepare(jobs)
        return self._engine.prepare(jobs)
