"""What a prepared step depends on, and whether it is still what it was."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Protocol

from torch import Tensor

from layerwise.engines import native
from layerwise.torch._cuts import local

States = Mapping[Tensor, Mapping[str, Any]]

# Compared at every step, so each is read by a function written in C.
OF_PARAMETER = (type, attrgetter("shape"), attrgetter("dtype"), Tensor.data_ptr, Tensor.stride)
OF_GRADIENT = (attrgetter("layout"), attrgetter("shape"), attrgetter("dtype"), attrgetter("device"))
OF_STATE = (Tensor.data_ptr,)


class Watch(Protocol):
    """What tensors were when they were checked: types, shapes, dtypes, places in memory; the gradients' may change."""

    def same(self, params: list[Tensor], grads: list[Tensor], states: States) -> bool:
        """Whether these are what they were."""


class Marks:
    """A watch over tensors of any kind, or over what of them is here."""

    def __init__(self, params: list[Tensor], grads: list[Tensor], states: States) -> None:
        self._seen = _marks(params, grads, states)

    def same(self, params: list[Tensor], grads: list[Tensor], states: States) -> bool:
        return self._seen == _marks(params, grads, states)


def _marks(params: list[Tensor], grads: list[Tensor], states: States) -> list[list[Any]]:
    own = list(map(states.get, params))
    kept = [x for state in own if state for x in state.values()]
    looked_at = (params, OF_PARAMETER), (grads, OF_GRADIENT), (kept, OF_STATE)
    here = [(list(map(local, tensors)), looks) for tensors, looks in looked_at]
    marks = [list(map(look, tensors)) for tensors, looks in here for look in looks]
    return [*marks, list(map(type, grads)), list(map(id, own)), list(map(id, kept))]


def watch(params: list[Tensor], grads: list[Tensor], states: States) -> Watch:
    """The quickest watch that can be kept over these tensors."""
    found: Watch | None = native.watch(params, grads, states)
    return found or Marks(params, grads, states)
