"""The state of one parameter, and the checks of a checkpoint's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from layerwise.core.storing import as_numbers, codes_of
from layerwise.errors import StateError
from layerwise.storage.forms import scales_of
from layerwise.storage.groups import GROUP
from layerwise.storage.options import MASTER, REMAINDER, SCALE, Wanted, is_signed
from layerwise.torch.sharding._cuts import is_dtensor, local
from layerwise.torch.step._bytes import restored
from layerwise.torch.step._memory import has_address, lying, resolved, unreadable
from layerwise.torch.step._namespace import LIBRARY, named
from layerwise.torch.step._plan import WAY_OUT, Plan
from layerwise.torch.step._storage import CODES, REMAINDERS, is_group, put_weights_in_form, storing
from layerwise.torch.step._tensors import FLOATING, LOW

State = dict[str, Any]
SLOW = "lookahead_slow_buff"  # the slow weights that timm's Lookahead keeps in the state of the optimizer it wraps
OTHERS = {"step", MASTER, REMAINDER, SLOW}
MOST_STEPS = 2**53  # exact as the floats that powers are taken of, and far from where an int64 ends


def as_step(name: str, value: Any) -> Tensor:
    """Return a step count as an integer tensor, whatever form it was saved in."""
    number = value
    if isinstance(value, Tensor):
        _check_readable(name, "step", value)
        _check_there(name, "step", value)
        if value.numel() != 1:
            raise StateError(f"'step' of {name} must be one number, but has the shape {tuple(value.shape)}. {WAY_OUT}")
        number = value.item()
    try:
        count = int(number) if not isinstance(number, bool) and number == int(number) else -1
    except (TypeError, ValueError, OverflowError):
        count = -1
    if not 0 <= count <= MOST_STEPS:
        raise StateError(f"'step' of {name} must be an integer from 0 to 2^53, but is {value!r}. {WAY_OUT}")
    return torch.tensor(count, device=value.device if isinstance(value, Tensor) else "cpu")


def _check_readable(name: str, key: str, value: Tensor) -> None:
    """Raise unless these are plain real numbers."""
    odd: Any = value.dtype if value.is_complex() or value.is_quantized else None
    odd = "nested" if value.is_nested else value.layout if value.layout is not torch.strided else odd
    if odd is not None:
        raise StateError(f"{key!r} of {name} must be a dense tensor of real numbers, but is {odd}. {WAY_OUT}")


def _check_there(name: str, key: str, value: Tensor) -> None:
    if value.is_meta:
        raise StateError(f"{key!r} of {name} is on the meta device and holds no numbers. Load its values.")


def ready(state: State, p: Tensor, plan: Plan, want: Wanted, on_device: bool) -> None:
    """Make the missing parts of the parameter's state."""
    device = p.device if on_device else torch.device("cpu")
    if "step" not in state:
        state["step"] = torch.zeros((), dtype=torch.long, device=device)
    elif not isinstance(state["step"], Tensor):
        state["step"] = as_step(plan.name, state["step"]).to(device)
    elif on_device and state["step"].device != device:
        state["step"] = state["step"].to(device)
    storing(plan, p, want).put_state_in_form(state)
    put_weights_in_form(state, plan, p, want)


def counted_elsewhere(states: Mapping[Tensor, State], params: Iterable[Tensor]) -> bool:
    """Return True if some of these parameters have step counts outside of the machine's memory."""
    found = (states[p].get("step") for p in params if p in states)
    return any(isinstance(step, Tensor) and step.device.type != "cpu" for step in found)


def apart(state: State) -> None:
    """Give the state its own storage, so that tensors that autograd keeps from the last step are not written to."""
    state.update({key: x.clone() for key, x in state.items() if isinstance(x, Tensor) and key != "step"})


def check_kept(plan: Plan, p: Tensor, state: Mapping[str, Any]) -> None:
    """Raise unless the kept state of a parameter, if any, can be stepped with and lies in the right place."""
    for key, x in state.items():
        is_number = key == "step" and not isinstance(x, Tensor)
        if not is_number and (why := _unusable(plan, key, x, p)):
            raise StateError(f"{key!r} of {plan.name} {why}")
        if is_number or (key == "step" and x.device.type == "cpu"):  # elsewhere, to look would mean waiting
            as_step(plan.name, x)
    own = {*plan.rule.State._fields, *OTHERS}
    if others := [key for key in state if key not in own and key.removesuffix(SCALE) not in own]:
        raise StateError(
            f"{others[0]!r} of {plan.name} is no state of {plan.h.optimizer}, which is to step it now. Forget the "
            "state of the rule before with clear_state(), or give its group that rule again."
        )
    for key in state.keys() - {"step"}:
        if is_dtensor(state[key]) != (plan.cut is not None):
            kind = "a plain tensor" if plan.cut is None else "a DTensor"
            raise StateError(
                f"{key!r} of {plan.name} must be {kind} as its parameter is. Make the optimizer of the parameters as "
                "they are now, and load its state through torch.distributed.checkpoint, which moves it."
            )
    if lost := [key for key in state if is_group(state[key]) and key != REMAINDER and key + SCALE not in state]:
        raise StateError(f"{lost[0]!r} of {plan.name} is in 8 bits and lacks {lost[0] + SCALE!r}. {WAY_OUT}")
    check_shapes(plan, state)


def _unusable(plan: Plan, key: str, x: Any, p: Tensor) -> str:
    """Return the reason why a part of the state cannot be stepped with, or an empty string."""
    wanted = "a tensor of one real number" if key == "step" else f"a floating tensor on {p.device}"
    if not isinstance(x, Tensor) or x.layout is not torch.strided or x.is_nested:
        return f"must be {wanted}, but is {x!r}. {WAY_OUT}"
    if key == "step":
        fits = x.numel() == 1 and not x.is_complex()
    else:
        wanted = f"{_stored_as(plan, key)} on {p.device}"
        fits = _is_stored(plan, key, x) and x.device == p.device
    if not fits:
        return f"must be {wanted}, but is of {x.dtype} and the shape {tuple(x.shape)} on {x.device}. {WAY_OUT}"
    if why := unreadable(x):
        return why
    shares = has_address(local(x)) and lying(local(x)).overlaps_itself
    return "is expanded: its elements share memory. Use its contiguous()." if shares else ""


def _is_stored(plan: Plan, key: str, x: Tensor) -> bool:
    """Return True if a part of the state has a dtype in which it can be stored."""
    if key == REMAINDER:
        return x.dtype in REMAINDERS.values() and plan.dtype in LOW
    if x.dtype not in CODES:
        return x.dtype in FLOATING
    return plan.elementwise.get(key, False) and named(x.dtype) == codes_of(plan.rule, key)


def _stored_as(plan: Plan, key: str) -> str:
    """Return the dtypes in which a part of the state can be stored, in words."""
    if key == REMAINDER:
        if plan.dtype in LOW:
            return "an int16 or int8 tensor"
        whose = "full_precision_state_dict reads the 16-bit ones that it belongs to"
        return f"left out beside weights of {plan.dtype}, which lack nothing ({whose})"
    codes = f", or its 8-bit codes in torch.{codes_of(plan.rule, key)}" if plan.elementwise.get(key) else ""
    return f"a tensor of 16 to 64 bit floats{codes}"


def shapes_of(plan: Plan, state: Mapping[str, Any]) -> dict[str, tuple[int, ...] | None]:
    """Return the shapes that the parts of a parameter's state must have."""
    scales = {key + SCALE: scales_of(plan.shape) for key in plan.state_shapes if is_group(state.get(key))}
    return {**plan.state_shapes, **scales, **dict.fromkeys((MASTER, REMAINDER, SLOW), plan.shape)}


def check_shapes(plan: Plan, state: Mapping[str, Any]) -> None:
    """Raise unless the existing state has these shapes."""
    for key, shape in shapes_of(plan, state).items():
        if shape is not None and key in state and tuple(state[key].shape) != shape:
            of = f", a scale for each {GROUP} elements of a row" if key.endswith(SCALE) else ""
            raise StateError(
                f"{key!r} of {plan.name} must have the shape {shape}{of}, but has {tuple(state[key].shape)}. "
                f"{plan.way_out}"
            )


def _check_values(plan: Plan, key: str, value: Any) -> None:
    """Raise unless this is a tensor of numbers to continue from."""
    if isinstance(value, Tensor):
        _check_readable(plan.name, key, value)
    if not isinstance(value, Tensor) or not _is_stored(plan, key, value):
        kind = f"{value.dtype}" if isinstance(value, Tensor) else f"{type(value).__name__}"
        allowed = _stored_as(plan, key)
        raise StateError(f"{key!r} of {plan.name} must be {allowed}, but is {kind}. {WAY_OUT}")


def checked_lr(name: str, lr: Any, within: bool) -> float:
    """Return the lr to multiply LARS's momentum by if it is to be `within`, else to divide it by."""
    if not float(lr) > 0:
        raise StateError(
            f"the momentum of {name} was saved at lr={float(lr):g} and lr_in_momentum={not within}, which has no other "
            f"form. Make the optimizer with lr_in_momentum={not within}."
        )
    return float(lr)


def checked(plan: Plan, state: Any) -> State:
    """Return a loaded state, if it fits its parameter."""
    name = plan.name
    if not isinstance(state, Mapping):
        raise StateError(f"the state of {name} must be a dict, but is {state!r}. {WAY_OUT}")
    state = restored(state, plan.shape)
    wanted = {key: shape for key, shape in plan.state_shapes.items() if shape is not None}
    scales = {key + SCALE for key in wanted if is_group(state.get(key))}
    unknown, missing = state.keys() - wanted.keys() - scales - OTHERS, {"step", *wanted, *scales} - state.keys()
    if unknown or missing:
        raise StateError(
            f"the state of {name} does not fit: unknown {sorted(map(str, unknown))}, missing {sorted(missing)}. "
            f"{WAY_OUT}"
        )
    for key in state.keys() - {"step"}:
        _check_values(plan, key, state[key])
        _check_there(name, key, state[key])
    check_shapes(plan, state)
    if scales and plan.why_not_grouped():
        state = _ungrouped(plan, state)
    placed = {key: plan.placed(key, resolved(value)) for key, value in state.items() if key != "step"}
    return {**placed, "step": as_step(name, state["step"])}


def _ungrouped(plan: Plan, state: State) -> State:
    """Return the state with numbers in place of groups, which would not survive the cut of the parameter.

    If they are already cut in another way, the ranks gather them first.
    """
    codes = {key: x.full_tensor() if is_dtensor(x) else x for key, x in state.items() if key + SCALE in state}
    scales = {key: x.full_tensor() if is_dtensor(x) else x for key, x in state.items() if key.endswith(SCALE)}
    fields = {key: as_numbers(LIBRARY, {**codes, **scales}, key, is_signed(plan.rule, key)) for key in codes}
    return {**{key: x for key, x in state.items() if key not in scales}, **fields}
