"""The GPU engine as far as it is known without importing a framework: whether its kernels can run here."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from layerwise.errors import EngineError, sentence

OLDEST = "3.5"  # Triton's version: older ones cannot make kernels with constants from functions
PROOF_VARIABLE = "LAYERWISE_GPU_PROOF"  # 0 uses the kernels without a proof


def proof_wanted() -> bool:
    """Return True if the environment leaves the proof on."""
    value = os.environ.get(PROOF_VARIABLE) or "1"
    if value not in ("0", "1"):
        raise EngineError(sentence(PROOF_VARIABLE, "0 or 1", value, "0 uses the GPU engine's kernels without a proof."))
    return value == "1"


def reason_missing() -> str:
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
