from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SHARED = ("sharding",)  # folders whose tests share something costly: all of one go to the same worker

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers share the cores among themselves

if find_spec("torch") and find_spec("triton"):
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported anywhere


@pytest.fixture
def jax64():
    """JAX in float64, for this test alone."""
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield jax
    jax.config.update("jax_enable_x64", before)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """With several workers (`-n`), keep each file's tests together, and start with those that take longest."""
    if not os.environ.get("PYTEST_XDIST_WORKER"):
        return
    for item in items:
        where = item.path.relative_to(TESTS)
        group = where.parts[0] if where.parts[0] in SHARED else where.as_posix()
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: item.path.relative_to(TESTS).parts[0] not in SHARED)
