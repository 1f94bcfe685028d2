"""The process in which kernels are compiled and executed: Triton decides when it is imported whether it interprets."""

from __future__ import annotations

import os
from typing import Any, NamedTuple


class Found(NamedTuple):
    """What came of some steps. It is not in `steps`, whose import hands the tensors of a process to the GPU engine."""

    launches: dict[str, int]  # of each kernel
    distance: float  # of the weights from the rule's, in the largest weight


def prepare() -> None:
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # tensors are in the machine's memory, whatever else there is


def call(name: str, *args: Any) -> Any:
    """Call a function of `steps`, which compiles what it launches."""
    from gpu.executed import steps

    return getattr(steps, name)(*args)
