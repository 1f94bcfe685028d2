"""What ranks do with the GPU engine."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from layerwise.engines import Candidate
from layerwise.torch import _engines
from sharding import runs


def stepped(*arguments: Any) -> Any:
    """As `runs.stepped`, by the GPU engine."""
    from gpu.interpreting import faithfully
    from gpu.world import RULE, SMALL

    from layerwise.engines.gpu.engine import GpuEngine

    table = (Candidate("gpu", GpuEngine(RULE, SMALL), insisting=GpuEngine(None, SMALL)), _engines.ENGINES[-1])
    with faithfully(), patch.object(_engines, "ENGINES", table):
        return runs.stepped(*arguments)
