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
from layerwise.errors import StateError
from layerwise.torch.arrays._library import named_state
from layerwise.torch.sharding._cuts import is_dtensor, like, local
from layerwise.torch.step._checks import resolved
from layerwise.torch.step._plan import WAY_OUT, Plan
from layerwise.torch.step._state import State, as_step, check_shapes, check_there, check_values, parts_of

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


def checked_lr(name: str, lr: Any, within: bool) -> float:
    """Return the lr to multiply LARS's momentum by if it is to be `within`, else to divide it by."""
    if not float(lr) > 0:
        raise StateError(
            f"the momentum of {name} was saved at lr={float(lr):g} and lr_in_momentum={not within}, which has no other "
            f"form. Make the optimizer with lr_in_momentum={not within}."
        )
    return float(lr)


def checked(plan: Plan, state: Any, alike: dict[Any, bool]) -> tuple[State, State]:
    """Return a loaded state, if it fits its parameter, and what other programs keep there.

    What is the same for several parameters is checked for the first of them; `alike` holds what was, and whether its
    groups survive the cut of the parameter.
    """
    name = plan.name
    if not isinstance(state, Mapping):
        raise StateError(f"the state of {name} must be a dict, but is {state!r}. {WAY_OUT}")
    own = own_entries(state)
    theirs = {key: _beside(plan, key, x) for key, x in state.items() if key not in own}
    if theirs and not own:
        return {}, theirs
    own = restored(own, plan.shape)
    if (kind := _kind(plan, own)) is None or kind not in alike:
        _check_loaded(plan, own)
        alike[kind] = not named_state(own).of_codes() or not plan.why_not_grouped()
    if not alike[kind]:
        own = _ungrouped(own)
    placed = {key: plan.placed(key, resolved(value)) for key, value in own.items() if key != "step"}
    return {**placed, "step": as_step(name, own["step"])}, theirs


def _kind(plan: Plan, state: State) -> Any:
    """Return what decides whether a state fits, apart from its numbers; None if more does."""
    arrays = {key: x for key, x in state.items() if key != "step"}
    if {*map(type, arrays.values())} != {Tensor} or True in [x.is_nested for x in arrays.values()]:
        return None
    each = [(key, x.dtype, x.shape, x.layout, x.is_meta) for key, x in arrays.items()]
    return id(plan.held), "step" in state, *each


def _check_loaded(plan: Plan, state: State) -> None:
    parts = parts_of(plan, state)
    needed = {key for key, part in parts.items() if part.needed}
    unknown, missing = state.keys() - parts.keys() - {"step"}, {"step", *needed} - state.keys()
    if unknown or missing:
        raise StateError(
            f"the state of {plan.name} does not fit: unknown {sorted(map(str, unknown))}, missing {sorted(missing)}. "
            f"{WAY_OUT}"
        )
    for key in state.keys() - {"step"}:
        check_values(plan, parts[key], key, state[key])
        check_there(plan.name, key, state[key])
    check_shapes(plan, parts, state)


def _beside(plan: Plan, key: str, x: Any) -> Any:
    """Return an entry of another program; what has the parameter's shape is cut as the parameter is."""
    if not isinstance(x, Tensor) or is_dtensor(x) or tuple(x.shape) != plan.shape:
        return x
    return plan.placed(key, x)


def _ungrouped(state: State) -> State:
    """Return the state with numbers in place of groups, which would not survive the cut of the parameter.

    If they are already cut in another way, the ranks gather them first.
    """
    parts = {key for pair in named_state(state).of_codes().items() for key in pair}
    whole = {key: x.full_tensor() if key in parts and is_dtensor(x) else x for key, x in state.items()}
    return named_state(whole).in_numbers()
