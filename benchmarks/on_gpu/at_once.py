"""Ours with all phases in one launch, which has yet to show whether it is faster than a launch for each."""

from __future__ import annotations

from typing import Any

import layerwise.torch
from layerwise.engines import Candidate
from layerwise.engines.gpu.call import Sizes
from layerwise.engines.gpu.engine import GpuEngine
from layerwise.torch import _engines

CHUNK = 2048  # what is in hand at a time has to fit into the cache


class _Chosen:
    """An optimizer that is stepped by an engine that nobody else gets."""

    engine: GpuEngine

    def _prepare(self, *args: Any) -> Any:
        kept, _engines.ENGINES = _engines.ENGINES, (Candidate("gpu", self.engine, insisting=self.engine),)
        try:
            return super()._prepare(*args)  # type: ignore[misc]
        finally:
            _engines.ENGINES = kept


class Lamb(_Chosen, layerwise.torch.Lamb):
    engine = GpuEngine(None, Sizes(chunk=CHUNK, persistent=True))


class Lars(_Chosen, layerwise.torch.Lars):
    engine = GpuEngine(None, Sizes(chunk=CHUNK, persistent=True))


class LambInPhases(_Chosen, layerwise.torch.Lamb):
    engine = GpuEngine(None, Sizes(chunk=CHUNK))


class LarsInPhases(_Chosen, layerwise.torch.Lars):
    engine = GpuEngine(None, Sizes(chunk=CHUNK))
