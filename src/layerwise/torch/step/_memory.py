"""Tensors and their memory. Engines read and write by address, so a tensor's numbers have to lie there, and alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from layerwise.engines import compiled
from layerwise.engines.overlap import Lying, shared
from layerwise.errors import GradientError, ParameterError
from layerwise.torch.sharding._cuts import local

BY_ADDRESS = (Tensor, Parameter)  # other types are subclasses, whose own functions say what they hold
FAKE = torch._C._TorchDispatchModeKey.FAKE


def readable(grads: list[Tensor], names: Callable[[], Iterable[str]]) -> list[Tensor]:
    """Return the gradients with each one's numbers in its memory; the same list if they already are."""
    if compiled.in_memory(grads):
        return grads
    return [_readable(name, g) for name, g in zip(names(), grads, strict=True)]


def _readable(name: str, g: Tensor) -> Tensor:
    if not unreadable(g):
        return g
    g = resolved(g)
    if why := unreadable(g):
        raise GradientError(f"the gradient of {name} {why}")
    return g


def resolved(x: Tensor) -> Tensor:
    """Return a tensor with its numbers in its memory, if a copy is enough for that."""
    if type(x) not in BY_ADDRESS:
        return x
    if torch._is_functional_tensor(x):
        x = torch._from_functional_tensor(x)
    if x._is_zerotensor():
        return x.clone()
    return x.resolve_neg() if x.is_neg() and not _is_freed(x) else x


def unreadable(x: Tensor) -> str:
    """Return the reason why a tensor's memory does not hold its numbers, with the way out; empty if it does."""
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
    """Return True if a tensor holds no numbers because of a FakeTensorMode, or would get such a state."""
    return hasattr(x, "fake_mode") or is_faking()


def is_faking() -> bool:
    """Return True under a FakeTensorMode."""
    return torch._C._get_dispatch_mode(FAKE) is not None


def has_address(x: Tensor) -> bool:
    """Return True if the local part of a tensor lies at an address; not on the meta device."""
    return type(x) in BY_ADDRESS and not x.is_meta


def lying(x: Tensor) -> Lying:
    """Return the place of a tensor."""
    size = x.element_size()
    return Lying(x.data_ptr(), tuple(x.shape), tuple(stride * size for stride in x.stride()), size)


def _are_apart(tensors: Sequence[Any]) -> bool:
    """Return True if a look is enough to see that tensors share no memory: plain ones, each in one piece."""
    if not {*map(type, tensors)} <= {*BY_ADDRESS} or False in [x.is_cpu and x.is_contiguous() for x in tensors]:
        return False
    starts = sorted([(x.data_ptr(), x.nbytes) for x in tensors if x.numel()])
    return False not in [start + size <= after for (start, size), (after, _) in pairwise(starts)]


def check_apart(names: Sequence[str], params: Sequence[Tensor], states: Mapping[Tensor, Mapping[str, Tensor]]) -> None:
    """Raise if weights or state that step together share memory: each would be written twice, in any order."""
    if _are_apart([x for p in params for x in (p, *states.get(p, {}).values())]):
        return
    by_device: dict[Any, list[tuple[str, Lying]]] = {}
    for name, p in zip(names, params, strict=True):
        own = [(f"{key!r} of {name}", x) for key, x in states.get(p, {}).items()]
        for what, x in ((name, p), *own):
            here = local(x)
            if has_address(here):
                by_device.setdefault(here.device, []).append((what, lying(here)))
    for arrays in by_device.values():
        if found := shared(arrays):
            raise ParameterError(
                f"{found[0]} and {found[1]} share memory, and both would be written. If the weights are tied, use "
                "the same Parameter in both places. Otherwise give one of them memory of its own, such as a clone()."
            )
