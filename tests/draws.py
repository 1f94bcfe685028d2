"""How often a property is tried: all of its draws where CI is set, and a fifth of them otherwise."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

ALIKE = {"deadline": None, "suppress_health_check": list(HealthCheck)}  # how fast a machine is proves nothing
settings.register_profile("ci", max_examples=100, **ALIKE)
settings.register_profile("local", max_examples=20, **ALIKE)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def draws(most: int) -> Any:
    """Return the settings of a property that is tried so often in CI."""
    return settings(max_examples=max(2, most * settings.default.max_examples // 100))
