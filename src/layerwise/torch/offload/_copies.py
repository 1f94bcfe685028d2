"""Copies between host and device, with everything that needs streams, events and pinned memory.

A copy is asynchronous: it begins after the work that was given to the device before, and has ended when its `CopyEnd`
says so. Until then its target has no value, and its source must not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from layerwise.errors import EngineError

HOST = torch.device("cpu")
Pairs = Sequence[tuple[Tensor, Tensor]]
"""Sources and targets of copies."""


class CopyEnd:
    """The end of copies that the host has already waited for."""

    def wait(self) -> None:
        """Let the host wait for it."""

    def follow(self) -> None:
        """Let all further work of the device wait for it; the host continues."""


def wait_for(arrivals: Iterable[CopyEnd]) -> None:
    """Let the host wait for these."""
    for arrival in arrivals:
        arrival.wait()


class Copies:
    """Copies between the host and a device without streams: the host waits for them.

    Copies in one direction end in order. They use `pinned` memory, which the device reads and writes while the host
    computes.
    """

    def pinned(self, size: int) -> Tensor:
        """Return this many bytes of host memory."""
        return torch.empty(size, dtype=torch.uint8)

    def copy(self, pairs: Pairs, back: bool) -> CopyEnd:
        """Begin to copy from the device to the host, or back."""
        for source, target in pairs:
            target.copy_(source)
        return CopyEnd()


class StreamCopyEnd(CopyEnd):
    """The end of copies on a stream."""

    def __init__(self, module: Any, stream: Any) -> None:
        self._module, self._stream, self._event = module, stream, module.Event()
        self._event.record(stream)

    def wait(self) -> None:
        self._event.synchronize()

    def follow(self) -> None:
        self._module.current_stream(self._stream.device).wait_event(self._event)


class StreamCopies(Copies):
    """Copies on two streams of a device, one for each direction."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, torch.get_device_module(device)
        self._streams = self._module.Stream(device), self._module.Stream(device)

    def pinned(self, size: int) -> Tensor:
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as problem:
            raise unpinned(size, problem) from problem

    def copy(self, pairs: Pairs, back: bool) -> CopyEnd:
        stream = self._streams[back]
        stream.wait_stream(self._module.current_stream(self._device))
        with self._module.stream(stream):
            for source, target in pairs:
                target.copy_(source, non_blocking=True)
                # The memory on the device is not reused before the copy has ended.
                (target if back else source).record_stream(stream)
        return StreamCopyEnd(self._module, stream)


def unpinned(size: int, problem: Exception) -> EngineError:
    """Return the error for memory that cannot be pinned."""
    return EngineError(
        f"{size} bytes of host memory cannot be pinned ({problem}), but offload=True needs them. No step was taken. "
        "Raise the limit of locked memory (ulimit -l), or free host memory."
    )


KINDS: dict[str, Callable[[torch.device], Copies]] = {"cuda": StreamCopies, "xpu": StreamCopies}
"""By device type; for others, copies block."""


@cache
def copies_of(device: torch.device) -> Copies:
    """Return the copies between the host and a device."""
    make = KINDS.get(device.type)
    return Copies() if make is None else make(device)


def begin_copies(pairs: Pairs, back: bool = False) -> list[CopyEnd]:
    """Begin to copy from each device to the host, or back."""
    found: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}
    for source, target in pairs:
        found.setdefault((target if back else source).device, []).append((source, target))
    with torch.no_grad():
        return [copies_of(device).copy(some, back) for device, some in found.items()]


def pinned(size: int, beside: Iterable[Tensor]) -> Tensor:
    """Return this many bytes of host memory for copies to and from the device of these."""
    return copies_of(next((x.device for x in beside if x.device != HOST), HOST)).pinned(size)
