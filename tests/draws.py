"""How often a property is tried: with all of its draws in CI, and with some of them by `make test`."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ALIKE = {"deadline": None, "suppress_health_check": list(HealthCheck)}  # how fast a machine is proves nothing
settings.register_profile("ci", max_examples=100, **ALIKE)
settings.register_profile("local", max_examples=20, **ALIKE)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def draws(most: int) -> Any:
    """Return the settings of a property that is tried so often in CI."""
    return settings(max_examples=max(2, most * settings.default.max_examples // 100))


def seeds(some: int, all_of_them: int) -> list[Any]:
    """Return the seeds of a test with a generator of its own: so many for every change, and the others slow."""
    return [*range(some), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(some, all_of_them))]
