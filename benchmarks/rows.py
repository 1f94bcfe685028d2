"""Timing in turns, and rows with their provenance."""

from __future__ import annotations

import csv
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("layerwise", "numpy", "jax", "optax", "torch", "transformers")


@dataclass(frozen=True)
class Timing:
    """Seconds of each round."""

    rounds: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def quartiles(self) -> tuple[float, float]:
        low, _, high = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return low, high


def alternately(
    steps: Mapping[str, Callable[[], None]], rounds: int, warmup: int = 2, together: Callable[[], None] | None = None
) -> dict[str, Timing]:
    """Time all of them in turns, so that whatever else the machine does meets them alike.

    Processes that take their steps together wait for one another in `together`, which is not timed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(-warmup, rounds):
        for name, step in steps.items():
            if together is not None:
                together()
            start = time.perf_counter()
            step()
            if round_ >= 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: Timing(found) for name, found in seconds.items()}


def provenance() -> dict[str, str]:
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.2f}",  # what the machine was busy with before
        "commit": _commit(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def append(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Add rows to a table that keeps its columns."""
    new = not path.exists()
    path.parent.mkdir(exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def _commit() -> str:
    command = ("git", "describe", "--always", "--dirty")
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _cpu() -> str:
    if sys.platform == "linux":
        found = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
        names = {key.strip(): value.strip() for key, value in found.items()}
        if "model name" in names:
            model = f"family {names.get('cpu family')} model {names.get('model')}"
            return f"{names['model name']} ({model})"
    return platform.processor() or platform.machine()
