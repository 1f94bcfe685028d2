"""The tensors that are stepped, and one implementation at work on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from layerwise.cli.bench.memory import bytes_in, peak_on_cpu, peak_on_cuda
from layerwise.cli.bench.peers import Peer
from layerwise.cli.bench.shapes import Shapes
from layerwise.cli.bench.timing import Clock, Step, wall

WEIGHT, GRADIENT = 0.02, 1e-3  # as large as they are where models train


@dataclass(frozen=True)
class Work:
    """Parameters with gradients, which all that are compared share: what a step takes does not depend on numbers."""

    shapes: Shapes
    params: list[torch.nn.Parameter]

    @property
    def on_cuda(self) -> bool:
        return self.params[0].is_cuda

    @property
    def clock(self) -> Clock:
        return on_cuda if self.on_cuda else wall

    @property
    def peak(self) -> Callable[[Step], int]:
        return peak_on_cuda if self.on_cuda else peak_on_cpu

    @property
    def bytes(self) -> int:
        """Of weights and gradients."""
        return 2 * sum(p.nbytes for p in self.params)

    def like(self, shapes: Shapes) -> Work:
        """The same with tensors of other shapes."""
        pairs = zip(shapes.values(), self.params, strict=True)
        return Work(shapes, [new_parameter(shape, p.dtype, p.device) for shape, p in pairs])


@dataclass
class Running:
    """One optimizer that has made its first step, and so its state."""

    label: str
    work: Work
    optimizer: Any
    step: Step = field(init=False)

    def __post_init__(self) -> None:
        self.step = self.optimizer.step
        self.step()

    @property
    def state_bytes(self) -> int:
        return bytes_in(self.optimizer.state)

    def peak(self) -> int:
        return self.work.peak(self.step)


def start(peer: Peer, work: Work) -> Running:
    return Running(peer.label, work, peer.make(work.params))


def new_parameter(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.nn.Parameter:
    p = torch.nn.Parameter(torch.empty(shape, dtype=dtype, device=device).normal_(std=WEIGHT))
    return with_gradient(p)


def with_gradient(p: torch.nn.Parameter) -> torch.nn.Parameter:
    p.grad = torch.empty_like(p).normal_(std=GRADIENT)
    return p


def of_shapes(shapes: Shapes, dtype: torch.dtype, device: torch.device) -> Work:
    torch.manual_seed(0)
    return Work(shapes, [new_parameter(shape, dtype, device) for shape in shapes.values()])


def of_model(model: torch.nn.Module, dtype: torch.dtype | None, device: torch.device) -> Work:
    torch.manual_seed(0)
    named = {name: p for name, p in model.to(device, dtype).named_parameters() if p.requires_grad}
    params = [with_gradient(p) for p in named.values()]
    return Work({name: tuple(p.shape) for name, p in named.items()}, params)


def on_cuda(step: Step) -> tuple[float, float]:
    """The clock of a GPU, which begins idle and may still be busy when the call has returned."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    host = time.perf_counter() - start
    torch.cuda.synchronize()
    return host, time.perf_counter() - start
