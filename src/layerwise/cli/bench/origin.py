"""The origin of the figures: machine, load and versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import datetime, timezone

from layerwise.cli.info import processor, version_of
from layerwise.threads import available_processors

PACKAGES = ("layerwise", "numpy", "jax", "optax", "torch", "transformers")


def origin(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": processor(),
        "cores": str(available_processors()),
        "load": f"{os.getloadavg()[0]:.2f}",  # what the machine was busy with before
        "python": platform.python_version(),
        **{name: version_of(name) or "" for name in packages},
    }
