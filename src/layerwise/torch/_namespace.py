"""PyTorch as the rules and their engine see it: functions by their names, some passes in one, reading and writing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from layerwise.torch._tensors import computing

PLAIN = ("sqrt", "sum", "where", "clip", "ones_like", "expm1", "asarray", "concat", "reshape", "stack", "float64")


def add_scaled(x: Any, a: Any, y: Tensor) -> Tensor:
    x = x if isinstance(x, Tensor) else torch.scalar_tensor(x, dtype=y.dtype, device=y.device)
    return torch.addcmul(x, y, a) if isinstance(a, Tensor) else torch.add(x, y, alpha=a)


def squares(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Σx², without a tensor of squares where all of x is summed."""
    if len(dims) == x.ndim and x.is_contiguous():
        flat = x.view(-1)
        return torch.dot(flat, flat).view((1,) * x.ndim)
    return torch.sum(x * x, dims, keepdim=True) if dims else x * x


def as_number(x: Tensor) -> float | Tensor:
    return x.item() if x.device.type == "cpu" else x  # elsewhere it would mean waiting for the device


def beside(x: Any, like: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    return x.to(like.device) if isinstance(like, Tensor) else x.item()


def mix(b: Any, x: Tensor, y: Tensor) -> Tensor:
    return x.lerp_(y, 1 - b)


def move(x: Tensor, a: Any, y: Tensor) -> Tensor:
    return x.addcmul_(y, a) if isinstance(a, Tensor) else x.add_(y, alpha=a)


PURE = {name: getattr(torch, name) for name in PLAIN} | {
    "add_scaled": add_scaled,
    "squares": squares,
    "as_number": as_number,
    "beside": beside,
}


class Tensors:
    """Tensors as the rule engine reads and writes them."""

    pure: Any = SimpleNamespace(**PURE)
    xp: Any = SimpleNamespace(**PURE, mix=mix, move=move)

    def read(self, array: Tensor, like: Tensor) -> Tensor:
        return array.to(like.device, computing(like.dtype))

    def copy(self, array: Tensor) -> Tensor:
        return array.clone()

    def write(self, stored: Tensor, new: Tensor) -> None:
        stored.copy_(new)

    def kind(self, array: Tensor) -> Hashable:
        return array.shape, array.dtype, array.device

    def stack(self, arrays: Sequence[Tensor]) -> Tensor:
        # Each stays in one piece, which is how they are read and written fastest.
        return torch.stack(tuple(arrays)).movedim(0, -1)

    def write_stack(self, stored: Sequence[Tensor], new: Tensor) -> None:
        torch._foreach_copy_(list(stored), list(new.unbind(-1)))


class DifferentiableTensors(Tensors):
    """The same for autograd: what it keeps must not be written to afterwards, and it follows no numbers."""

    pure = xp = torch

    def read(self, array: Tensor, like: Tensor) -> Tensor:
        return array.to(like.device, computing(like.dtype), copy=True)
