"""Where it all happens: a GPU, or this machine's processor by Triton's interpreter, on a few small tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.nn import Parameter

import layerwise.torch
from harness.shapes import Shapes
from harness.tensors import Tensors, of_shapes
from layerwise.engines import Candidate, compiled
from layerwise.torch.step import _engines

OPTIMIZERS = ("Lamb", "Lars", "Adafactor")
RULE = {"fused": False, "foreach": False}  # the reference implementation, tensor by tensor
LISTS = {"fused": None, "foreach": True}
FEW, SMALLER = 6, 1 << 16  # tensors that are interpreted, and how many times smaller than they are


class NoDeviceError(RuntimeError):
    """There is nothing that this could run on."""


@dataclass(frozen=True)
class Place:
    """A device, and whether everything on it is to be small because an interpreter takes the steps."""

    device: torch.device
    engine: str
    interpreted: bool = False

    def work(self, shapes: Shapes, dtype: torch.dtype = torch.float32) -> Tensors:
        torch.manual_seed(0)
        return of_shapes(self.few(shapes), dtype, self.device)

    def few(self, shapes: Shapes) -> Shapes:
        return dict(islice(shrunk(shapes, SMALLER).items(), FEW)) if self.interpreted else shapes

    def draw(self, seed: int, shapes: Iterable[tuple[int, ...]], dtype: torch.dtype) -> list[torch.Tensor]:
        """Normal numbers, the same for the same seed."""
        generator = torch.Generator(self.device).manual_seed(seed)
        drawn = [torch.randn(shape, generator=generator, device=self.device) for shape in shapes]
        return [x.to(dtype) for x in drawn]

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def find(interpret: bool) -> Place:
    if interpret:
        return Place(torch.device("cpu"), _interpreted(), interpreted=True)
    if not torch.cuda.is_available():
        raise NoDeviceError(
            "this needs a GPU that PyTorch can use, where it checks, profiles and times the kernels; "
            "--interpret tries the script without one."
        )
    return Place(torch.device("cuda", torch.cuda.current_device()), "gpu")


def _interpreted() -> str:
    """Let `fused=True` take the engine for GPUs on the processor's tensors; what it is that does."""
    row, said = _row(), "gpu, interpreted"
    if row.engine is None:
        said = f"compiled, in place of gpu: {row.declined}"
        row = compiled.candidate(increment_version)
    _engines.ENGINES = (row, _engines.LISTS, Candidate("rule", _engines.RULE))
    return said


def _row() -> Candidate:
    try:
        from layerwise.engines.gpu import candidate
    except ImportError as problem:
        return Candidate("gpu", None, f"it cannot be imported ({problem})")
    row: Candidate = candidate(_engines.RULE)
    return row


def ours(name: str, params: Iterable[Any], options: Mapping[str, Any]) -> Any:
    """One of our optimizers by its fused engine, unless the options say otherwise."""
    make: Callable[..., Any] = getattr(layerwise.torch, name)
    return make(list(params), **{"fused": True, **options})


def parameters(values: Iterable[torch.Tensor]) -> list[Parameter]:
    return [Parameter(x.clone()) for x in values]


def set_gradients(params: Iterable[Parameter], values: Iterable[torch.Tensor]) -> None:
    for p, g in zip(params, values, strict=True):
        p.grad = g


def shrunk(shapes: Shapes, factor: int) -> Shapes:
    """Return every tensor with about so many times fewer elements, so that what is largest stays largest."""
    return {name: _shrunk(shape, factor) for name, shape in shapes.items()}


def _shrunk(shape: tuple[int, ...], factor: int) -> tuple[int, ...]:
    dims, target = list(shape), max(1, prod(shape) // factor)
    while prod(dims) > target:
        longest = dims.index(max(dims))
        dims[longest] = (dims[longest] + 1) // 2
    return tuple(dims)
