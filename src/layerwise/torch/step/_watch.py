"""Watches: comparisons of the tensors that a prepared step depends on with their present state."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Protocol

from torch import Tensor

from layerwise.engines import compiled
from layerwise.torch.sharding._cuts import local
from layerwise.torch.step._memory import has_address

States = Mapping[Tensor, Mapping[str, Any]]


def _bytes(x: Tensor) -> int:
    return x.untyped_storage().nbytes() if has_address(x) else 0


# Compared at every step, so each is read by a function written in C.
OF_PARAMETER = (type, attrgetter("shape"), attrgetter("dtype"), Tensor.data_ptr, Tensor.stride, Tensor.is_neg, _bytes)
OF_GRADIENT = (attrgetter("layout"), attrgetter("shape"), attrgetter("dtype"), attrgetter("device"))
OF_STATE = (Tensor.data_ptr, Tensor.is_neg, _bytes)


class Watch(Protocol):
    """The types, shapes, dtypes and addresses of tensors when they were checked. Gradients' addresses may change."""

    def same(self, params: list[Tensor], grads: list[Tensor], states: States, only_objects: bool = False) -> bool:
        """Return True if these, or with `only_objects` the objects that the state consists of, have not changed."""

    def moved(self, params: list[Tensor], grads: list[Tensor], states: States) -> bool:
        """Return True if these have changed only in their addresses, and have their own memory."""


class Marks:
    """A watch over tensors of any kind, or over their local parts."""

    def __init__(self, params: list[Tensor], grads: list[Tensor], states: States) -> None:
        self._objects, self._kinds = _objects(params, states), _kinds(params, grads, states)

    def same(self, params: list[Tensor], grads: list[Tensor], states: States, only_objects: bool = False) -> bool:
        if self._objects != _objects(params, states):
            return False
        return only_objects or self._kinds == _kinds(params, grads, states)

    def moved(self, params: list[Tensor], grads: list[Tensor], states: States) -> bool:
        return False  # all of it is checked


def _objects(params: list[Tensor], states: States) -> list[Any]:
    own = list(map(states.get, params))
    return [list(map(id, own)), [(key, id(x)) for state in own if state for key, x in state.items()]]


def _kinds(params: list[Tensor], grads: list[Tensor], states: States) -> list[list[Any]]:
    kept = [x for state in map(states.get, params) if state for x in state.values()]
    looked_at = (params, OF_PARAMETER), (grads, OF_GRADIENT), (kept, OF_STATE)
    here = [(list(map(local, tensors)), looks) for tensors, looks in looked_at]
    return [*(list(map(look, tensors)) for tensors, looks in here for look in looks), list(map(type, grads))]


def watch(params: list[Tensor], grads: list[Tensor], states: States) -> Watch:
    """Return the quickest watch that can be kept over these tensors."""
    found: Watch | None = compiled.watch(params, grads, states)
    return found or Marks(params, grads, states)
