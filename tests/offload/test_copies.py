"""The calls that copies make of a device's streams and events, in their order; no device of ours has any."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
import torch

from layerwise.errors import EngineError
from layerwise.torch.offload import _copies


class Calls(list):
    """What was called, as words."""


class Thing:
    """A tensor or a stream that says what is done to it."""

    def __init__(self, name: str, calls: Calls) -> None:
        self.name, self.calls, self.device = name, calls, "the device"

    def copy_(self, source: Thing, non_blocking: bool) -> None:
        assert non_blocking
        self.calls.append(f"copy {source.name} to {self.name}")

    def record_stream(self, stream: Thing) -> None:
        self.calls.append(f"{self.name} is used by {stream.name}")

    def wait_stream(self, other: Thing) -> None:
        self.calls.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Event) -> None:
        self.calls.append(f"{self.name} waits for {event.name}")


class Event:
    def __init__(self, module: Module) -> None:
        self.calls, self.name = module.calls, "the event"

    def record(self, stream: Thing) -> None:
        self.calls.append(f"event on {stream.name}")

    def synchronize(self) -> None:
        self.calls.append("the host waits")


class Module:
    """As `torch.cuda`."""

    def __init__(self) -> None:
        self.calls, self.made = Calls(), 0

    def Stream(self, device: Any) -> Thing:  # noqa: N802
        self.made += 1
        return Thing(f"stream {self.made}", self.calls)

    def Event(self) -> Event:  # noqa: N802
        return Event(self)

    def current_stream(self, device: Any) -> Thing:
        return Thing("the current stream", self.calls)

    @contextmanager
    def stream(self, stream: Thing):
        self.calls.append(f"on {stream.name}")
        yield
        self.calls.append("off")


@pytest.fixture
def streamed(monkeypatch):
    module = Module()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    return _copies.StreamCopies(torch.device("cuda")), module.calls


@pytest.mark.parametrize(("back", "stream", "there"), [(False, 1, "source"), (True, 2, "target")])
def test_a_copy_waits_for_work_before_it_and_its_end_is_an_event(streamed, back, stream, there):
    copies, calls = streamed
    arrival = copies.copy([(Thing("source", calls), Thing("target", calls))], back)
    assert calls == [
        f"stream {stream} waits for the current stream",
        f"on stream {stream}",
        "copy source to target",
        f"{there} is used by stream {stream}",
        "off",
        f"event on stream {stream}",
    ]
    calls.clear()
    arrival.follow()
    arrival.wait()
    assert calls == ["the current stream waits for the event", "the host waits"]


def test_memory_that_cannot_be_pinned_says_so(streamed, monkeypatch):
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(torch, "empty", fails)
    with pytest.raises(EngineError, match=r"64 bytes .* cannot be pinned \(no more\).*ulimit"):
        streamed[0].pinned(64)


def test_devices_without_streams_are_waited_for():
    copies = _copies.copies_of(torch.device("mps"))
    target = copies.pinned(4)
    arrival = copies.copy([(torch.arange(4, dtype=torch.uint8), target)], back=False)
    arrival.wait()
    arrival.follow()
    assert target.tolist() == [0, 1, 2, 3]
    copies.copy([(torch.ones(4, dtype=torch.uint8), target)], back=True).follow()
    assert target.tolist() == [1] * 4
