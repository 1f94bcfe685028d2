"""Checkpoints of state stored in integers: as bytes, along an extra dimension.

Collectives know no integers of 16 bits, and a program that copies checkpoints into tensors of floats by their names
would make numbers of codes. That dimension keeps it from both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from layerwise.core.slot import own_entries
from layerwise.torch.sharding._cuts import like, local

INTEGERS = (torch.int8, torch.uint8, torch.int16)
BYTES = (torch.int8, torch.uint8)


def saved(state: Any) -> Any:
    """Return a parameter's state in its saved form, in the same memory; entries of other programs stay as they are."""
    if not isinstance(state, Mapping):
        return state
    return {**state, **{key: _saved(x) for key, x in own_entries(state).items()}}


def _saved(x: Any) -> Any:
    if not isinstance(x, Tensor) or x.dtype not in INTEGERS:
        return x
    here = local(x).unsqueeze(-1)
    here = here if here.dtype in BYTES else here.view(torch.int8)
    return like(x, here, (x.element_size(),))


def restored(state: Mapping[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the state of a parameter of this shape as it was before it was saved."""
    return {key: _restored(x, shape) for key, x in state.items()}


def _restored(x: Any, shape: tuple[int, ...]) -> Any:
    if not isinstance(x, Tensor) or x.dtype not in BYTES or x.layout is not torch.strided or x.is_nested:
        return x
    if tuple(x.shape) not in ((*shape, 1), (*shape, 2)):
        return x
    here = local(x).clone()
    here = here if x.shape[-1] == 1 else here.view(torch.int16)
    return like(_without_last(x), here.squeeze(-1))


def _without_last(x: Any) -> Any:
    """Return a DTensor with one dimension less, as a model of placements."""
    return x.select(-1, 0) if type(x) is not Tensor else x
