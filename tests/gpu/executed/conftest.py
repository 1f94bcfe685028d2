"""Kernels as they are compiled, executed without a GPU."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from gpu.executed import process


@pytest.fixture(scope="session")
def executed():
    """Calls a function of `gpu.executed.steps`, in a process that compiles kernels once."""
    with ProcessPoolExecutor(1, get_context("spawn"), process.prepare) as pool:
        yield lambda name, *args: pool.submit(process.call, name, *args).result()
