"""The form in which an optimizer is saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from layerwise.core.slot import own_entries
from layerwise.errors import HyperparameterError
from layerwise.options.checks import numpy_to_python
from layerwise.options.settings import as_plain_value
from layerwise.torch.groups._members import State
from layerwise.torch.sharding._dtensors import like, local
from layerwise.torch.step._stepper import stepper_of

if TYPE_CHECKING:
    from torch.optim.optimizer import StateDict


def saved_form(optimizer: torch.optim.Optimizer, pack: Callable[[], StateDict]) -> StateDict:
    """Return the state and the groups of an optimizer; `pack` is PyTorch's own `state_dict`."""
    members = {id(p) for p, _ in stepper_of(optimizer).members.all()}  # this updates the names
    left = {p: one for p, one in optimizer.state.items() if isinstance(p, Tensor) and id(p) not in members}
    for p in left:  # of parameters that are in no group any more, and may return
        del optimizer.state[p]
    try:
        found = pack()
    finally:
        optimizer.state.update(left)
    states = found["state"]
    own = [key for group in found["param_groups"] for key in group["params"] if key in states]
    found["state"] = {**states, **{key: saved_state(states[key]) for key in own}}
    for group in found["param_groups"]:
        group.update({key: numpy_to_python(x) for key, x in group.items()})
        with suppress(HyperparameterError):  # the next step will refuse it
            group.update(stepper_of(optimizer).groups.rules.in_plain_form(group))
        group.update({key: as_plain_value(value) for key, value in group.items() if callable(value)})
    return found


# State stored in integers is saved as bytes, along an extra dimension. Collectives know no integers of 16 bits, and a
# program that copies checkpoints into tensors of floats by their names would make numbers of codes.
INTEGERS = (torch.int8, torch.uint8, torch.int16)
BYTES = (torch.int8, torch.uint8)


def saved_state(state: object) -> Any:
    """Return a parameter's state in its saved form, in the same memory; entries of other programs stay as they are."""
    if not isinstance(state, Mapping):
        return state
    return {**state, **{key: _saved(x) for key, x in own_entries(state).items()}}


def _saved(x: object) -> Any:
    if not isinstance(x, Tensor) or x.dtype not in INTEGERS:
        return x
    here = local(x).unsqueeze(-1)
    here = here if here.dtype in BYTES else here.view(torch.int8)
    return like(x, here, (x.element_size(),))


def restored(state: Mapping[str, object], shape: tuple[int, ...]) -> State:
    """Return the state of a parameter of this shape as it was before it was saved."""
    return {key: _restored(x, shape) if isinstance(x, Tensor) and x.dtype in BYTES else x for key, x in state.items()}


def _restored(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    if x.layout is not torch.strided or x.is_nested or tuple(x.shape) not in ((*shape, 1), (*shape, 2)):
        return x
    here = local(x).clone()
    here = here if x.shape[-1] == 1 else here.view(torch.int16)
    return like(_without_last(x), here.squeeze(-1))


def _without_last(x: Any) -> Any:
    """Return a DTensor with one dimension less, from which placements can be copied."""
    return x.select(-1, 0) if type(x) is not Tensor else x
