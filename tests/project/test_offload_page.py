"""The table of what fits, on the page, is the one that the benchmark computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import scripts

PAGE = Path(__file__).parents[2] / "docs" / "offload.md"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(scripts.HOME))
    return scripts.load("offload_benchmark", "offload.py")


def test_the_page_shows_what_fits(benchmark):
    assert "\n".join(benchmark.fits()) in PAGE.read_text("utf-8")


def test_the_bytes_of_the_table_are_those_of_the_state(benchmark):
    import torch

    for (optimizer, _), form in benchmark.FORMATS.items():
        dtype = torch.float32 if form.weights == 4 else torch.bfloat16
        p = torch.nn.Parameter(torch.zeros(256, 256, dtype=dtype))
        p.grad = torch.ones_like(p)
        opt = getattr(benchmark.layerwise.torch, optimizer)([p], lr=0.1, **form.options)
        opt.step()
        held = (benchmark._state_bytes(opt) + benchmark._bytes(p)) / p.numel()
        assert held == pytest.approx(form.host, abs=0.04)  # rows, columns and the count are the rest
