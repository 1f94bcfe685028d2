"""What ranks do with the GPU engine."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import torch.distributed as dist

from layerwise.engines import Candidate
from layerwise.errors import SynchronizationError
from layerwise.torch.step import _engines
from sharding import flats, runs

STEPS = 2  # of which the second finds a state; the interpreter is slow


def stepped(*arguments: Any) -> Any:
    """As `runs.stepped`, by the GPU engine."""
    from gpu.interpreting import faithfully
    from gpu.world import RULE, SMALL

    from layerwise.engines.gpu.engine import GpuEngine

    table = (Candidate("gpu", GpuEngine(RULE, SMALL), insisting=GpuEngine(None, SMALL)), _engines.ENGINES[-1])
    with faithfully(), patch.object(_engines, "ENGINES", table):
        return runs.stepped(*arguments, steps=STEPS)


def stepped_flat(*arguments: Any) -> Any:
    """As `flats.stepped`, by the GPU engine."""
    from gpu.interpreting import faithfully
    from gpu.world import RULE, SMALL

    from layerwise.engines.gpu.engine import GpuEngine

    table = (Candidate("gpu", GpuEngine(RULE, SMALL), insisting=GpuEngine(None, SMALL)), _engines.ENGINES[-1])
    with faithfully(), patch.object(_engines, "ENGINES", table):
        return flats.stepped(*arguments, steps=STEPS)


def proven(broken: Sequence[int], *arguments: Any) -> Any:
    """As `stepped`, with kernels that do nothing on some ranks: what is there in the end, or the error's words."""
    from gpu.interpreting import faithfully
    from gpu.world import RULE, SMALL

    from layerwise.engines.gpu.engine import GpuEngine
    from layerwise.engines.gpu.kernels import parts
    from layerwise.engines.gpu.proof import Proof

    run = type(parts.add_up).run

    def nothing(self: Any, *args: Any, **kwargs: Any) -> Any:
        return None if self.__name__ == "apply" else run(self, *args, **kwargs)

    own = GpuEngine(RULE, SMALL, Proof(RULE))
    table = (Candidate("gpu", own), _engines.ENGINES[-1])
    how = patch.object(type(parts.add_up), "run", nothing) if dist.get_rank() in broken else nullcontext()
    with how, faithfully(), patch.object(_engines, "ENGINES", table), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return runs.stepped(*arguments, steps=STEPS)
        except SynchronizationError as problem:
            return str(problem)
