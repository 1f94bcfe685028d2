"""Where there is no GPU, kernels run in Triton's interpreter, on tensors in the machine's memory."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="kernels need Triton")


@pytest.fixture(autouse=True, scope="session")
def _interpreter(faithful_interpreter):
    """Every test here needs it."""


@pytest.fixture
def on_gpu(monkeypatch):
    """The engine that tensors on a GPU get, with work cut small; also where they are in the machine's memory."""
    from gpu.world import SMALL

    from layerwise.engines import Candidate
    from layerwise.engines.gpu import GpuEngine
    from layerwise.torch.step import _engines

    table = (Candidate("gpu", GpuEngine(sizes=SMALL)), Candidate("rule", _engines.RULE))
    monkeypatch.setattr(_engines, "ENGINES", table)


@pytest.fixture
def launches(monkeypatch):
    """The kernels launched, by name."""
    from layerwise.engines.gpu.kernels import common

    found, kind = [], type(common.root)
    run = kind.run

    def noted(self, *args, **kwargs):
        found.append(self.__name__)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(kind, "run", noted)
    return found
