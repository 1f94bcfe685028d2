"""PyTorch's tensors, on which all optimizers are timed, and an optimizer of PyTorch at work on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from harness.memory import available, bytes_in, peak_on_cpu, peak_on_cuda
from harness.shapes import Shapes
from harness.timing import Clock, Running, Step, wall

WEIGHT, GRADIENT = 0.02, 1e-3  # as large as they are where models train
# How a GPU is held up: about its cycles in a second, and at least and at most so many seconds.
CYCLES, SHORTEST, LONGEST = 2e9, 1e-4, 0.1


@dataclass(frozen=True)
class Tensors:
    """Parameters with gradients, which all that are compared share: a step takes as long whatever the numbers.

    Where an optimizer writes to these, they stay of ordinary size.
    """

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

    def single(self) -> Tensors:
        """Return as many tensors with as many dimensions, of one element each."""
        shapes = {name: (1,) * len(shape) for name, shape in self.shapes.items()}
        pairs = zip(shapes.values(), self.params, strict=True)
        return Tensors(shapes, [_parameter(torch.empty(shape, dtype=p.dtype, device=p.device)) for shape, p in pairs])


def stepping(label: str, work: Tensors, step: Step, state: Any) -> Running:
    """Return a step of these tensors, with the containers of the state that it keeps."""
    step()
    peak = peak_on_cuda if work.on_cuda else peak_on_cpu
    return Running(label, step, lambda: bytes_in(state), lambda: peak(step))


def of_shapes(shapes: Shapes, dtype: torch.dtype = torch.float32, device: Any = "cpu") -> Tensors:
    return Tensors(shapes, [_parameter(torch.empty(shape, dtype=dtype, device=device)) for shape in shapes.values()])


def _parameter(x: torch.Tensor) -> torch.nn.Parameter:
    p = torch.nn.Parameter(x.normal_(std=WEIGHT))
    p.grad = torch.empty_like(p).normal_(std=GRADIENT)
    return p


def free(device: torch.device | str) -> int:
    if torch.device(device).type != "cuda":
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
    host, _ = wall(step)
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    cuda.synchronize()
    cuda._sleep(int(CYCLES * min(SHORTEST + 1.5 * host, LONGEST)))
    begin.record()
    step()
    end.record()
    cuda.synchronize()
    return host, begin.elapsed_time(end) / 1e3
