"""What would carry out a step here, and why not something faster. Needs no package besides NumPy."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from layerwise.engines.native import VARIABLE as ISA_VARIABLE
from layerwise.engines.native import heed_environment, why_not
from layerwise.threads import VARIABLE as THREADS_VARIABLE
from layerwise.threads import available_processors, extension, wanted_threads

FRONTS = ("numpy", "torch", "jax")


def info() -> list[str]:
    """The lines that `layerwise info` prints."""
    found = [f"{name} {_version(name)}" for name in FRONTS]
    return [
        f"layerwise {_version('layerwise')}, Python {platform.python_version()} on {platform.machine()}",
        f"  fronts   {', '.join(found)}",
        *_cpu(),
        "  rule     any array library: what no other engine takes",
    ]


def _cpu() -> list[str]:
    native = extension()
    if native is None:
        return [f"  cpu      not available: {why_not()}"]
    heed_environment()
    others = ", ".join(native.instruction_sets())
    wanted, there = wanted_threads(), available_processors()
    return [
        "  cpu      NumPy arrays and PyTorch's CPU tensors",
        f"           instructions {native.instruction_set()} (kernels for {others}){_said(ISA_VARIABLE)}",
        f"           threads {wanted} (of {there} processors){_said(THREADS_VARIABLE)}",
        f"           compiled by {native.compiler()}",
    ]


def _said(variable: str) -> str:
    value = os.environ.get(variable)
    return f", {variable}={value}" if value else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
