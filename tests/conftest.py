from __future__ import annotations

import pytest


@pytest.fixture
def jax64():
    """JAX in float64, for this test alone."""
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield jax
    jax.config.update("jax_enable_x64", before)
