"""Copies between host and device: all that streams, events and pinned memory are needed for.

A copy is asynchronous: it begins when the work that was given to the device before it has ended, and has ended when its
`Arrival` says so. Until then its target has no value, and its source must stay as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from layerwise.errors import EngineError

Pairs = Sequence[tuple[Tensor, Tensor]]
"""Sources and targets of copies."""


class Arrival(Protocol):
    """The end of some copies."""

    def wait(self) -> None:
        """Let the host wait for it."""

    def follow(self) -> None:
        """Let all that the device is given from now on wait for it; the host goes on."""


class Copies(Protocol):
    """The copies between the host and one device. Those of one direction end in the order in which they are asked for.

    They are to and from `pinned` memory, which the device reads and writes while the host computes.
    """

    def pinned(self, size: int) -> Tensor:
        """Return so many bytes of host memory."""

    def out(self, pairs: Pairs) -> Arrival:
        """Copy from the device to the host."""

    def back(self, pairs: Pairs) -> Arrival:
        """Copy from the host to the device."""


class Now:
    """The end of copies that the host has waited for already."""

    def wait(self) -> None:
        pass

    def follow(self) -> None:
        pass


class Blocking:
    """Copies on a device without streams, which the host waits for."""

    def pinned(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def out(self, pairs: Pairs) -> Arrival:
        for source, target in pairs:
            target.copy_(source)
        return Now()

    back = out


class Recorded:
    """The end of copies on a stream."""

    def __init__(self, module: Any, stream: Any) -> None:
        self._module, self._stream, self._event = module, stream, module.Event()
        self._event.record(stream)

    def wait(self) -> None:
        self._event.synchronize()

    def follow(self) -> None:
        self._module.current_stream(self._stream.device).wait_event(self._event)


class Streamed:
    """Copies on two streams of a device, one for each direction."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, torch.get_device_module(device)
        self._out, self._back = self._module.Stream(device), self._module.Stream(device)

    def pinned(self, size: int) -> Tensor:
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as problem:
            raise unpinned(size, problem) from problem

    def out(self, pairs: Pairs) -> Arrival:
        return self._copied(pairs, self._out, 0)

    def back(self, pairs: Pairs) -> Arrival:
        return self._copied(pairs, self._back, 1)

    def _copied(self, pairs: Pairs, stream: Any, on_device: int) -> Arrival:
        stream.wait_stream(self._module.current_stream(self._device))
        with self._module.stream(stream):
            for pair in pairs:
                pair[1].copy_(pair[0], non_blocking=True)
                pair[on_device].record_stream(stream)  # its memory is given to nobody else before the copy has ended
        return Recorded(self._module, stream)


def unpinned(size: int, problem: Exception) -> EngineError:
    """Return the error for memory that cannot be pinned."""
    return EngineError(
        f"{size} bytes of host memory cannot be pinned ({problem}), which offload=True needs. Nothing was stepped. "
        "Raise the limit of locked memory (ulimit -l), or free some of the host's memory."
    )


KINDS: dict[str, Callable[[torch.device], Copies]] = {"cuda": Streamed, "xpu": Streamed}
"""By the types of devices; others block."""


def copies_of(device: torch.device) -> Copies:
    """Return the copies between the host and a device."""
    make = KINDS.get(device.type)
    return Blocking() if make is None else make(device)
