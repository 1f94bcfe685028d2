"""A small model that trains on the CPU and on the device in the same way, so that all numbers are to be the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from offload.device import Far, StandIn, far, near
from torch import Tensor, nn

import layerwise.torch as lw
from layerwise.torch.step._stepper import stepper_of

RING = 4 * 1536  # bytes: parts of a few of the model's tensors


class Model(nn.Module):
    """An embedding, three layers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 64)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()) for _ in range(3))
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


class Run:
    """A model, its optimizer, and batches, on the CPU or, offloaded, on the device."""

    def __init__(self, make: Callable[..., Any], on_device: bool, dtype: torch.dtype = torch.float32, **options: Any):
        torch.manual_seed(0)
        self.model, self.on_device = Model().to(dtype), on_device
        if on_device:
            to_device(self.model)
            options["offload"] = True
        self.opt = make(self.model, **options)
        if on_device:
            stepper_of(self.opt).host.most = RING
        self._batches = torch.Generator().manual_seed(1)

    def again(self) -> None:
        """Let the last batch be the next one."""
        self._batches.set_state(self._before)

    def backward(self, scale: float = 1.0) -> Tensor:
        self._before = self._batches.get_state()
        x = torch.randint(0, 12, (6, 5), generator=self._batches)
        loss = self.model(far(x) if self.on_device else x).float().square().mean() * scale
        loss.backward()
        return loss.detach()

    def step(self) -> None:
        self.backward()
        self.opt.step()
        self.opt.zero_grad()

    def overlap(self, **options: Any) -> Run:
        if self.on_device:
            self.hooks = lw.overlap(self.opt, self.model.layers, memory=RING, **options)
        return self

    def numbers(self) -> list[Tensor]:
        """The weights as the device has them, and the state."""
        StandIn.end()
        weights = [near(p.detach()).clone() for p in self.model.parameters()]
        states = [self.opt.state.get(p, {}) for p in self.model.parameters()]
        return weights + [state[key].clone() for state in states for key in sorted(state)]


def named(front: Any, **fixed: Any) -> Callable[..., Any]:
    """How to make an optimizer of a model."""
    return lambda model, **options: front(model.named_parameters(), **{"lr": 0.01, **fixed, **options})


def to_device(model: nn.Module) -> None:
    for module in model.modules():
        for name, p in list(module._parameters.items()):
            if p is not None:
                module._parameters[name] = nn.Parameter(Far(p.detach()), requires_grad=p.requires_grad)


def both(make: Callable[..., Any], *args: Any, **options: Any) -> tuple[Run, Run]:
    """The same run on the CPU and on the device."""
    return Run(make, False, *args, **options), Run(make, True, *args, **options)


def same(a: Run, b: Run) -> bool:
    """Whether all bits of weights and state are the same."""
    ours, theirs = a.numbers(), b.numbers()
    assert len(ours) == len(theirs)
    assert all(x.device.type == "cpu" and x.dtype == y.dtype for x, y in zip(ours, theirs, strict=True))
    return all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


@contextmanager
def replaced(owner: Any, name: str, value: Any):
    """Put a fault in the place of something."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
