"""What one step asks of the GPU: launches, copies and waits, of few tensors and of many."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from harness.memory import silenced
from on_gpu.check import Outcome, attempt
from on_gpu.graph import many
from on_gpu.options import USUAL
from on_gpu.place import OPTIMIZERS, Place, ours, parameters, set_gradients

FEW, MANY = 10, 200
MARK = "the step that is counted"
NO_KERNELS = ("Memcpy", "Memset", "Context Sync", "Stream Sync", "Stream Wait", "Event Sync")
BEFORE = 3  # steps, which make the state, plan and compile
CALLS = {
    "launches": re.compile(r"(cuda|cu|hip)\w*Launch\w*"),
    "copies": re.compile(r"(cuda|cu|hip)Memcpy\w*"),
    "fills": re.compile(r"(cuda|cu|hip)Memset\w*"),
    "waits": re.compile(r"(cuda|cu|hip)((Device|Stream|Event|Ctx)Synchronize\w*|Memcpy(HtoD|DtoH|DtoD)?(_v2)?)"),
}


class Event(NamedTuple):
    """A call on the host or some work on the GPU, in nanoseconds."""

    name: str
    start: int
    end: int
    on_gpu: bool = False


class Counts(NamedTuple):
    kernels: int  # as the GPU saw them
    launches: int  # as the host did
    copies: int
    fills: int
    waits: int

    def __str__(self) -> str:
        return ", ".join(f"{n} {name}" for name, n in self._asdict().items())


def counted(events: Iterable[Event]) -> Counts:
    """The calls within the marked step, and what the GPU did. What the profiler itself asks for lies outside."""
    every = list(events)
    [mark] = [one for one in every if one.name == MARK and not one.on_gpu]
    within = [one.name for one in every if not one.on_gpu and mark.start <= one.start and one.end <= mark.end]
    calls = {kind: sum(bool(call.fullmatch(name)) for name in within) for kind, call in CALLS.items()}
    said = {one.name for one in every if not one.on_gpu}  # what the host has named is there again as a range
    kernels = [one for one in every if one.on_gpu and one.name not in said and not one.name.startswith(NO_KERNELS)]
    return Counts(len(kernels), **calls)


def profiled(place: Place, optimizer: str, tensors: int, on_device: bool = False) -> Counts:
    """Of a step whose count and rate may be on the device."""
    shapes = list(place.few(many(tensors)).values())
    params = parameters(place.draw(0, shapes, torch.float32))
    set_gradients(params, place.draw(1, shapes, torch.float32))
    options = dict(USUAL[optimizer])
    if on_device:
        options |= {"capturable": True, "lr": torch.tensor(options["lr"], device=place.device)}
    opt = ours(optimizer, params, options)
    for _ in range(BEFORE):
        opt.step()
    place.wait()
    return [_seen(place, opt) for _ in range(2)][-1]  # the first time the profiler is still waking up


def _seen(place: Place, opt: Any) -> Counts:
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (place.device.type == "cuda")]
    with silenced(), profile(activities=activities) as seen:
        with record_function(MARK):
            opt.step()
        place.wait()
    return counted(_events(seen))


def _events(seen: Any) -> Iterator[Event]:
    for event in seen.profiler.kineto_results.events():
        on_gpu = event.device_type() != torch.autograd.DeviceType.CPU
        yield Event(event.name(), event.start_ns(), event.start_ns() + event.duration_ns(), on_gpu)


def outcomes(place: Place) -> Iterator[Outcome]:
    for optimizer in OPTIMIZERS:
        for on_device in (False, True):
            what = f"{optimizer}{', capturable' * on_device}: a step of {FEW} and of {MANY} tensors"
            yield attempt(what, partial(_compared, what, place, optimizer, on_device), required=True)


def _compared(what: str, place: Place, optimizer: str, on_device: bool) -> Outcome:
    return judged(what, *(profiled(place, optimizer, n, on_device) for n in (FEW, MANY)))


def judged(what: str, few: Counts, many: Counts) -> Outcome:
    """As many launches for many tensors as for few, at least one kernel, and no waits."""
    said = str(few) if few == many else f"{few}; and {many}"
    problem = ""
    if few.waits or many.waits:
        problem = "the host waits for the GPU"
    elif (few.kernels, few.launches) != (many.kernels, many.launches):
        problem = "launches grow with the number of tensors"
    elif not few.kernels:
        problem = "no kernel was seen"
    return Outcome(what, problem=f"{problem}: {said}") if problem else Outcome(what, 0.0, 0.0, said)
