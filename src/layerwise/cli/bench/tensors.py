"""PyTorch's tensors, and an optimizer at work on them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from layerwise.cli.bench.memory import available, bytes_in, peak_on_cpu, peak_on_cuda
from layerwise.cli.bench.model import model_of
from layerwise.cli.bench.request import Request
from layerwise.cli.bench.shapes import SETS, Shapes, parameters
from layerwise.cli.bench.timing import Clock, Step, wall
from layerwise.cli.exits import Mistake

WEIGHT, GRADIENT = 0.02, 1e-3  # as large as they are where models train
# How a GPU is held up: about its cycles in a second, and at least and at most so many seconds.
CYCLES, SHORTEST, LONGEST = 2e9, 1e-4, 0.1


@dataclass(frozen=True)
class Tensors:
    """Parameters with gradients. Where an optimizer writes to these, they stay of ordinary size."""

    shapes: Shapes
    params: list[torch.nn.Parameter]

    @property
    def dtype(self) -> str:
        return " and ".join(sorted({str(p.dtype).removeprefix("torch.") for p in self.params}))

    @property
    def device(self) -> str:
        return str(self.params[0].device)

    @property
    def bytes(self) -> int:
        """Of weights and gradients."""
        return 2 * sum(p.nbytes for p in self.params)

    @property
    def on_cuda(self) -> bool:
        return self.params[0].is_cuda

    @property
    def clock(self) -> Clock:
        return on_cuda if self.on_cuda else wall

    def like(self, shapes: Shapes) -> Tensors:
        """Return the same with tensors of other shapes."""
        pairs = zip(shapes.values(), self.params, strict=True)
        return Tensors(shapes, [new_parameter(shape, p.dtype, p.device) for shape, p in pairs])


class Stepping:
    """A step of PyTorch's tensors, and the state that it keeps."""

    copied = 0

    def __init__(self, label: str, work: Any, step: Step, state: Any) -> None:
        self.label, self._work, self.step, self._state = label, work, step, state
        self.step()

    @property
    def state_bytes(self) -> int:
        return bytes_in(self._state)

    def peak(self) -> int:
        return peak_on_cuda(self.step) if self._work.on_cuda else peak_on_cpu(self.step)


def new_parameter(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.nn.Parameter:
    p = torch.nn.Parameter(torch.empty(shape, dtype=dtype, device=device).normal_(std=WEIGHT))
    return with_gradient(p)


def with_gradient(p: torch.nn.Parameter) -> torch.nn.Parameter:
    p.grad = torch.empty_like(p).normal_(std=GRADIENT)
    return p


def works(request: Request) -> Iterator[tuple[str, Tensors]]:
    """Yield the sets of tensors, one at a time."""
    torch.manual_seed(0)
    torch.set_num_threads(request.threads)
    device = device_of(request.device)
    if request.model is not None:
        yield request.model, of_model(request, device)
        return
    dtype: torch.dtype = getattr(torch, request.dtype or "float32")
    sets = {name: SETS[name]() for name in request.shapes}
    for name, shapes in sets.items():
        request.check_room(name, 2 * dtype.itemsize * parameters(shapes), free(request.device))
    for name, shapes in sets.items():
        yield name, of_shapes(shapes, dtype, device)


def of_shapes(shapes: Shapes, dtype: torch.dtype, device: torch.device) -> Tensors:
    return Tensors(shapes, [new_parameter(shape, dtype, device) for shape in shapes.values()])


def of_model(request: Request, device: torch.device) -> Tensors:
    path = str(request.model)
    model = model_of(path).to(device, None if request.dtype is None else getattr(torch, request.dtype))
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    request.check_room(path, sum(p.nbytes for p in named.values()), free(request.device))
    return Tensors({name: tuple(p.shape) for name, p in named.items()}, [with_gradient(p) for p in named.values()])


def device_of(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except Exception as problem:
        reason = str(problem).strip().partition("\n")[0]
        raise Mistake(f"--device {name!r} is unavailable: {reason}. 'layerwise info --devices' lists them.") from None
    if device.type not in ("cpu", "cuda"):
        raise Mistake(f"--device must be cpu or cuda, but is {name!r}: on others nothing is measured yet.")
    return device


def free(device: str) -> int:
    if not device.startswith("cuda"):
        return available()
    torch.cuda.empty_cache()  # what the allocator only keeps counts as taken otherwise
    return torch.cuda.mem_get_info(device)[0]


def on_cuda(step: Step) -> tuple[float, float]:
    """Return the clock of a GPU, which takes two steps.

    The host's time is that of a step which finds the GPU idle. The GPU's, between two events, is that of one which was
    asked for while the GPU was still held up: else a GPU that is faster than the calls would be timed waiting for them.
    """
    cuda: Any = torch.cuda
    cuda.synchronize()
    start = time.perf_counter()
    step()
    host = time.perf_counter() - start
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    cuda.synchronize()
    cuda._sleep(int(CYCLES * min(SHORTEST + 1.5 * host, LONGEST)))
    begin.record()
    step()
    end.record()
    cuda.synchronize()
    return host, begin.elapsed_time(end) / 1e3
