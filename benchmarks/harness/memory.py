"""The free memory, the memory that an optimizer keeps, and the memory that a step takes on top."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.timing import Step

GIB = 2**30
GROUPS = Path("/sys/fs/cgroup")
MARK = "the step that is watched"


def available(meminfo: Path = Path("/proc/meminfo"), groups: Path = GROUPS) -> int:
    """Return the bytes that can be taken without making the machine swap, as far as the system reports them."""
    found = [_of_machine(meminfo)]
    limit, used = _number(groups / "memory.max"), _number(groups / "memory.current")
    if limit is not None and used is not None:
        found.append(max(0, limit - used))
    return min(found)


def _of_machine(meminfo: Path) -> int:
    try:
        rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(rows["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):  # not this system: half of what is built in
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max", or no such file
        return None


def bytes_in(held: Any) -> int:
    """Return the bytes of all arrays and tensors in nested containers, each counted once."""
    return sum({id(one): int(one.nbytes) for one in _arrays(held)}.values())


def _arrays(held: Any) -> Iterable[Any]:
    if hasattr(held, "nbytes"):
        yield held
        return
    if isinstance(held, Mapping):
        held = held.values()
    if isinstance(held, Iterable) and not isinstance(held, (str, bytes)):
        for one in held:
            yield from _arrays(one)


def peak_on_cpu(step: Step) -> int:
    """Return the largest sum of what PyTorch holds at one time while `step` runs, beside what was there before.

    Of the second of two steps: what is given back is known only of what was taken while somebody watched.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    with silenced(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
        with record_function(MARK):
            step()
    profiler: Any = seen.profiler
    total = before = highest = 0
    for event in sorted(profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == MARK:
            before = highest = total
        elif event.name() == "[memory]":
            total += event.nbytes()
            highest = max(highest, total)
    return highest - before


@contextmanager
def silenced() -> Iterator[None]:
    """Hide what the profiler's compiled part writes to the standard error."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def peak_on_cuda(step: Step) -> int:
    import torch

    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
