"""Kernels as they are compiled, executed without a GPU."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from gpu.executed import process


@pytest.fixture(scope="module")
def executed():
    """Calls a function of `gpu.executed.steps`, in a process that compiles each kernel once."""
    found = {}
    with ProcessPoolExecutor(1, get_context("spawn"), process.prepare) as pool:

        def call(*case):
            found[case] = pool.submit(process.call, *case).result()
            return found[case]

        yield call
    assert "gpu.executed.steps" not in sys.modules, "its engine now steps the tensors of this process"
    if path := os.environ.get("LAYERWISE_DISTANCES"):
        from gpu.executed.table import text_of

        Path(path).write_text(text_of(found), "utf-8")
