"""The parameters and gradients that the PyTorch API accepts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from layerwise.engines import compiled
from layerwise.engines.addresses import StridedMemory, overlapping_pair
from layerwise.errors import GradientError, ParameterError
from layerwise.torch.arrays._library import FLOATING
from layerwise.torch.sharding._dtensors import check_alike, local
from layerwise.torch.sharding._wrapped_modules import check_described, is_marked


def kinds_of(params: list[Tensor], grads: list[Tensor]) -> Iterator[Hashable]:
    """Return the key of tensors for which one check is enough, or None if each needs its own."""
    if is_faking() or not (compiled.in_memory(params) and compiled.in_memory(grads)):
        return repeat(None, len(params))
    return iter(
        [
            None
            if vars(p) and is_marked(p)
            else (p.shape, p.dtype, p.device, p.is_contiguous() or id(p), g.shape, g.dtype, g.device)
            for p, g in zip(params, grads, strict=True)
        ]
    )


REMAKE = "Make torch.nn.Parameter(p.detach().{}) the parameter, and use it in the model."


def check_parameter(name: str, p: Tensor) -> None:
    """Raise unless `p` is a tensor that can be stepped in place."""
    check_kind(name, p)
    if p.is_meta:
        raise ParameterError(f"{name} is on the meta device and has no values. Materialize the model first.")
    check_described(name, p)
    if why := why_unreadable(p):
        raise ParameterError(f"{name} {why}")
    if memory_of(local(p)).overlaps_itself:
        raise ParameterError(f"{name} is expanded: its elements share memory. {REMAKE.format('contiguous()')}")


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
        way_out = REMAKE.format("bfloat16()") if p.is_floating_point() else "Leave it out: integers have no gradient."
        raise ParameterError(f"{name} must have a floating-point dtype of 16 to 64 bits, but has {p.dtype}. {way_out}")
    if p.layout is not torch.strided:
        raise ParameterError(
            f"{name} must be a dense tensor, but its layout is {p.layout}. {REMAKE.format('to_dense()')}"
        )


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


def check_step(name: str, p: Tensor, g: Tensor, differentiable: bool) -> None:
    """Raise unless the parameter can be stepped with this gradient."""
    check_parameter(name, p)
    check_gradient(name, p, g)
    if differentiable and p.is_leaf and p.requires_grad:
        raise ParameterError(
            f"{name} is a leaf that requires grad, so a differentiable step cannot write to it. Step a clone of it."
        )
    check_alike(name, p, g)


def to_skip(grads: Sequence[Tensor], found_inf: Tensor | None, skip_nonfinite: bool) -> Tensor | Literal[True] | None:
    """Return the decision to skip the step: True or None if it is known at no cost, otherwise a tensor on the
    device.
    """
    found = [] if found_inf is None else [local(found_inf).reshape(()) > 0]
    if skip_nonfinite:
        found += [_any_nonfinite(some) for (some,) in by_device_and_dtype([g for g in grads if g.numel()])]
    if any(bool(flag) for flag in found if flag.device.type == "cpu"):
        return True
    elsewhere = [flag for flag in found if flag.device.type != "cpu"]
    return torch.stack([flag.to(elsewhere[0].device) for flag in elsewhere]).any() if elsewhere else None


def _any_nonfinite(grads: list[Tensor]) -> Tensor:
    """Return True if there is a nan or an infinity: then the largest number is not finite, and otherwise it cannot
    overflow.
    """
    return ~torch.isfinite(torch.stack(torch._foreach_norm(grads, inf))).all()


def by_device_and_dtype(*columns: Sequence[Tensor]) -> Iterator[list[list[Tensor]]]:
    """Return rows of one device and dtype together, as `torch._foreach_` takes them."""
    rows: dict[object, list[tuple[Tensor, ...]]] = {}
    for row in zip(*columns, strict=True):
        rows.setdefault(tuple((x.device, x.dtype) for x in row), []).append(row)
    return ([list(column) for column in zip(*some, strict=True)] for some in rows.values())


BY_ADDRESS = (Tensor, Parameter)  # other types are subclasses, whose own functions define their contents
FAKE = torch._C._TorchDispatchModeKey.FAKE


def readable(grads: list[Tensor], names: Callable[[], Iterable[str]]) -> list[Tensor]:
    """Return the gradients with their values in memory; the same list if they already are."""
    if compiled.in_memory(grads):
        return grads
    return [_readable(name, g) for name, g in zip(names(), grads, strict=True)]


def _readable(name: str, g: Tensor) -> Tensor:
    if not why_unreadable(g):
        return g
    g = resolved(g)
    if why := why_unreadable(g):
        raise GradientError(f"the gradient of {name} {why}")
    return g


def resolved(x: Tensor) -> Tensor:
    """Return a tensor with its values in memory, if a copy is enough for that."""
    if type(x) not in BY_ADDRESS:
        return x
    if torch._is_functional_tensor(x):
        x = torch._from_functional_tensor(x)
    if x._is_zerotensor():
        return x.clone()
    return x.resolve_neg() if x.is_neg() and not _is_freed(x) else x


def why_unreadable(x: Tensor) -> str:
    """Return the reason why a tensor's memory does not hold its values, with the way out; empty if it does."""
    x = local(x)
    if not has_address(x) or x.layout is not torch.strided:
        return ""
    if torch._is_functional_tensor(x) or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return "is a placeholder inside a function transform and has no memory. Step outside the transform."
    if x.is_neg():
        return "is a negated view: its memory has the opposite sign. Pass its resolve_neg()."
    if x._is_zerotensor():
        return "is a tensor of zeros without memory. Pass its clone()."
    return "has a storage smaller than itself: its memory was freed. Fill the storage again." if _is_freed(x) else ""


def _is_freed(x: Tensor) -> bool:
    """Return True if a view reaches beyond its storage."""
    if not x.numel():
        return False
    last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    return bool(x.untyped_storage().nbytes() < (x.storage_offset() + last + 1) * x.element_size())


def is_fake(x: Tensor) -> bool:
    """Return True if a tensor has no values because of a FakeTensorMode, or would get such a state."""
    return hasattr(x, "fake_mode") or is_faking()


def is_faking() -> bool:
    """Return True under a FakeTensorMode."""
    return torch._C._get_dispatch_mode(FAKE) is not None


def has_address(x: Tensor) -> bool:
    """Return True if the local part of a tensor has an address; not on the meta device."""
    return type(x) in BY_ADDRESS and not x.is_meta


def memory_of(x: Tensor) -> StridedMemory:
    """Return the place of a tensor."""
    size = x.element_size()
    return StridedMemory(x.data_ptr(), tuple(x.shape), tuple(stride * size for stride in x.stride()), size)


def _are_apart(tensors: Sequence[Any]) -> bool:
    """Return True if tensors obviously share no memory: plain ones, each in one piece."""
    if not {*map(type, tensors)} <= {*BY_ADDRESS} or False in [x.is_cpu and x.is_contiguous() for x in tensors]:
        return False
    starts = sorted([(x.data_ptr(), x.nbytes) for x in tensors if x.numel()])
    return False not in [start + size <= after for (start, size), (after, _) in pairwise(starts)]


def check_apart(names: Sequence[str], params: Sequence[Tensor], states: Mapping[Tensor, Mapping[str, Tensor]]) -> None:
    """Raise if weights or state that step together share memory: each would be written twice, in any order."""
    if _are_apart([x for p in params for x in (p, *states.get(p, {}).values())]):
        return
    by_device: dict[object, list[tuple[str, StridedMemory]]] = {}
    for name, p in zip(names, params, strict=True):
        own = [(f"{key!r} of {name}", x) for key, x in states.get(p, {}).items()]
        for what, x in ((name, p), *own):
            here = local(x)
            if has_address(here):
                by_device.setdefault(here.device, []).append((what, memory_of(here)))
    for arrays in by_device.values():
        if found := overlapping_pair(arrays):
            raise ParameterError(
                f"{found[0]} and {found[1]} share memory, and both would be written. If the weights are tied, use "
                "the same Parameter in both places. Otherwise give one of them memory of its own, such as a clone()."
            )
