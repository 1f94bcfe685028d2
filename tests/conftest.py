from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

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


def pytest_collection_modifyitems(items):
    """Start with what takes longest, so that with several workers (`-n`) none is left with it at the end."""
    items.sort(key=lambda item: item.path.relative_to(TESTS).parts[0] != "sharding")
