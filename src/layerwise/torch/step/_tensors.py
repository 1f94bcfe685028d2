"""The parameters and gradients that the PyTorch front accepts."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import repeat
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from layerwise.engines import compiled
from layerwise.errors import GradientError, ParameterError
from layerwise.torch.sharding._cuts import local
from layerwise.torch.sharding._flat import check_described, is_marked
from layerwise.torch.step._memory import is_fake, is_faking, lying, unreadable

LOW = (torch.float16, torch.bfloat16)
FLOATING = (*LOW, torch.float32, torch.float64)
compiled.know_torch(torch)


def computing(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the arithmetic and of the state: at least float32."""
    return torch.float32 if dtype in LOW else dtype


def kinds_of(params: list[Tensor], grads: list[Tensor]) -> Iterator[Hashable]:
    """Return what each has in common with those for which one check is enough; None if it is checked by itself."""
    if is_faking() or not (compiled.in_memory(params) and compiled.in_memory(grads)):
        return repeat(None, len(params))
    return iter(
        [
            None
            if is_marked(p)
            else (p.shape, p.dtype, p.device, p.is_contiguous() or id(p), g.shape, g.dtype, g.device)
            for p, g in zip(params, grads, strict=True)
        ]
    )


def check_parameter(name: str, p: Tensor) -> None:
    """Raise unless `p` is a tensor that can be stepped in place."""
    check_kind(name, p)
    if p.is_meta:
        raise ParameterError(f"{name} is on the meta device and has no values. Materialize the model first.")
    check_described(name, p)
    if why := unreadable(p):
        raise ParameterError(f"{name} {why}")
    if lying(local(p)).overlaps_itself:
        raise ParameterError(f"{name} is expanded: its elements share memory. Pass p.contiguous() as the parameter.")


def check_kind(name: str, p: Tensor) -> None:
    """Raise unless `p` is a tensor of a kind that can be stepped, if it holds numbers."""
    if is_lazy(p):
        raise ParameterError(f"{name} has no shape yet. Run the model's forward once before creating the optimizer.")
    if p.is_nested:
        raise ParameterError(f"{name} is a nested tensor, which has no single norm. Make its components parameters.")
    if is_fake(p):
        raise ParameterError(
            f"{name} cannot be stepped under FakeTensorMode: fake tensors have no values. Create and step the "
            "optimizer outside it."
        )
    if p.is_complex():
        raise ParameterError(
            f"{name} is complex. Make torch.view_as_real(p.detach()).requires_grad_() the parameter instead."
        )
    if p.dtype not in FLOATING:
        raise ParameterError(f"{name} must have a floating-point dtype of 16 to 64 bits, but has {p.dtype}.")
    if p.layout is not torch.strided:
        raise ParameterError(f"{name} must be a dense tensor, but its layout is {p.layout}. Pass p.to_dense().")


def check_gradient(name: str, p: Tensor, g: Tensor) -> None:
    """Raise unless `g` is a gradient that fits `p`."""
    if g.is_nested:
        raise GradientError(f"the gradient of {name} is a nested tensor. Pass a dense tensor of the parameter's shape.")
    if is_fake(local(g)):
        raise GradientError(
            f"the gradient of {name} is a fake tensor, which has no values. Compute it outside FakeTensorMode."
        )
    if g.layout is not torch.strided:
        raise GradientError(
            f"the gradient of {name} is sparse ({g.layout}), but the norm of a tensor needs all of it. Use "
            "sparse=False in the embedding, or p.grad = p.grad.to_dense()."
        )
    if g.dtype not in FLOATING:
        raise GradientError(
            f"the gradient of {name} must have a floating-point dtype of 16 to 64 bits, but has {g.dtype}."
        )
    if g.shape != p.shape:
        raise GradientError(
            f"the gradient of {name} has the shape {tuple(g.shape)}, but its parameter has {tuple(p.shape)}."
        )
    if g.device != p.device:
        raise GradientError(
            f"the gradient of {name} is on {g.device}, but its parameter is on {p.device}. Move one of them."
        )


def to_skip(grads: Sequence[Tensor], found_inf: Tensor | None, skip_nonfinite: bool) -> Tensor | Literal[True] | None:
    """Return the decision to skip the step: True or None if that is known at no cost, else a tensor on the device."""
    found = [] if found_inf is None else [local(found_inf).reshape(()) > 0]
    if skip_nonfinite:
        found += [_any_nonfinite(some) for (some,) in alike([g for g in grads if g.numel()])]
    if any(bool(flag) for flag in found if flag.device.type == "cpu"):
        return True
    elsewhere = [flag for flag in found if flag.device.type != "cpu"]
    return torch.stack([flag.to(elsewhere[0].device) for flag in elsewhere]).any() if elsewhere else None


def _any_nonfinite(grads: list[Tensor]) -> Tensor:
    """Return True for a nan or an infinity: then the largest number is one, and otherwise it cannot overflow."""
    return ~torch.isfinite(torch.stack(torch._foreach_norm(grads, inf))).all()


def alike(*columns: Sequence[Tensor]) -> Iterator[list[list[Tensor]]]:
    """Return rows of one device and dtype together, as `torch._foreach_` takes them."""
    rows: dict[Any, list[tuple[Tensor, ...]]] = {}
    for row in zip(*columns, strict=True):
        rows.setdefault(tuple((x.device, x.dtype) for x in row), []).append(row)
    return ([list(column) for column in zip(*some, strict=True)] for some in rows.values())
