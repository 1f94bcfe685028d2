"""The GPU engine: Triton kernels, cut where the rules yield, that take all tensors of a step in one launch a phase."""

from __future__ import annotations

from importlib.util import find_spec

from layerwise.engines import Candidate, Engine

NAME = "gpu"


def candidate(otherwise: Engine) -> Candidate:
    """The row of a front's table. `otherwise` takes the jobs that this engine does not."""
    reason = why_not()
    if reason:
        return Candidate(NAME, None, reason)
    from layerwise.engines.gpu.engine import GpuEngine

    return Candidate(NAME, GpuEngine(otherwise), insisting=GpuEngine(None))


def why_not() -> str:
    """Why there are no kernels here."""
    if find_spec("triton") is None:
        return "Triton is not installed, with which its kernels are compiled"
    return ""
