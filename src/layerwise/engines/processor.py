"""The processor: how many threads the compiled engine may use, and whether it multiplies 16 bits faster than 32."""

from __future__ import annotations

import os
from functools import cache
from math import ceil
from pathlib import Path

from layerwise.options.checks import integer
from layerwise.storage.extension import extension

VARIABLE = "LAYERWISE_NUM_THREADS"
MOST = 1024
COUNT = integer(1)
WAY_OUT = "Pass the number of threads of the compiled engine, such as 4."
_given: int | None = None


def set_num_threads(n: int) -> None:
    """Set the largest number of threads of the compiled engine. Results are the same for any number.

    Args:
        n: The number of threads.
    """
    global _given
    _given = min(int(COUNT("n", n, WAY_OUT)), MOST)
    if (native := extension()) is not None:
        native.set_num_threads(_given)


def get_num_threads() -> int:
    """Return the largest number of threads of the compiled engine; 1 without that engine."""
    return 1 if extension() is None else wanted_threads()


def wanted_threads() -> int:
    """Return the number that was set, or the environment variable's, or the number of available processors."""
    if _given is not None:
        return _given
    value = os.environ.get(VARIABLE)
    if not value:
        return available_processors()
    return min(int(COUNT(VARIABLE, int(value) if value.strip().isdecimal() else value, WAY_OUT)), MOST)


def available_processors() -> int:
    """Return the number of processors this process may run on, or fewer if a quota limits its time."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        allowed = os.cpu_count() or 1
    quota = cgroup_quota()
    return max(1, allowed if quota is None else min(allowed, ceil(quota)))


def cgroup_quota(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> float | None:
    """Return the number of processors whose time the control groups allow to this process, or None for no limit."""
    own = next((line[4:] for line in _read(membership).splitlines() if line.startswith("0::/")), "")
    around = [root / own, *(root / own).parents]
    found = [_quota(folder / "cpu.max") for folder in around if folder == root or root in folder.parents]
    return min(filter(None, found), default=None)


def _quota(path: Path) -> float | None:
    try:
        quota, period = map(float, _read(path).split())
    except ValueError:  # "max", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


UNITS = {"amx_bf16", "avx512_bf16"}  # as Linux names them


@cache
def fast_product_dtype_of_cpu(flags: str = "/proc/cpuinfo") -> str | None:
    """Return "bfloat16" if the processor has units for it, as far as the system tells, or None."""
    try:
        lines = Path(flags).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    found = next((line for line in lines if line.startswith("flags")), "")
    return "bfloat16" if UNITS & set(found.split()) else None
