"""Reading and setting a model's weights with all the precision that its optimizer stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from layerwise.errors import HyperparameterError, StateError, sentence
from layerwise.options.by_name import lacks_and_has
from layerwise.torch._optimizer import Optimizer
from layerwise.torch.arrays._library import FLOATING, LOW, named_state
from layerwise.torch.groups._members import Group, GroupDict, State
from layerwise.torch.sharding._cuts import cut_of
from layerwise.torch.sharding._dtensors import is_dtensor, local, placed
from layerwise.torch.step._plan import Plan, make_missing
from layerwise.torch.step._stepper import Stepper, stepper_of

if TYPE_CHECKING:
    from torch.optim.optimizer import StateDict

Optimizers = Optimizer | Iterable[Optimizer]
"""An optimizer of `layerwise.torch`, or several that hold parts of one model."""
ORDER = "full_precision_state_dict(model, optimizer)"
WAY_OUT = "Pass what full_precision_state_dict() or the model's state_dict() returned."


def full_precision_state_dict(model: nn.Module, optimizer: Optimizers) -> StateDict:
    """Return model.state_dict(), with weights in float32 if the optimizer holds more digits of them than the model.

    It does with `master_weights` of True, "split" or "split24". Everything else is as in model.state_dict(): keys,
    buffers, and the tensors themselves. Sharded weights are DTensors, and tied weights are one tensor.

    Args:
        model: The model.
        optimizer: Its optimizer, or several that hold parts of the model.
    """
    held = {one.p: one for one in _members(optimizer) if _is_held(one.state)}
    for one in held.values():
        cut_of(one.name, one.p).check_shown()
    full: dict[Tensor, Tensor] = {}
    found = dict(model.state_dict(keep_vars=True))
    for key, value in found.items():
        if not isinstance(value, Tensor):
            continue
        if value in held and value not in full:
            stepped = held[value].stepper.in_place_of(value).detach()
            full[value] = named_state(held[value].state).weights_in_full(stepped)
        found[key] = full.get(value, value.detach())
    return found


def load_full_precision_state_dict(model: nn.Module, optimizer: Optimizers, state_dict: StateDict) -> None:
    """Set the weights of a model, and the additional digits that its optimizer holds, from a state_dict.

    Whole tensors are sharded as in the model. A state_dict that does not fit raises StateError and changes nothing.

    Args:
        model: The model.
        optimizer: Its optimizer, or several that hold parts of the model.
        state_dict: The result of `full_precision_state_dict`, or a model's state_dict of any floating dtype.
    """
    shown = model.state_dict(keep_vars=True)
    if not isinstance(state_dict, Mapping):
        raise StateError(f"a state_dict must be a dict, but is {state_dict!r}. {WAY_OUT}")
    _check_keys(shown, state_dict)
    owners = {one.p: one for one in _members(optimizer)}
    full: dict[Tensor, Tensor] = {}
    loaded = dict(state_dict)
    for key, own in shown.items():
        if isinstance(own, Tensor):
            _check(key, own, loaded[key])
            loaded[key] = _placed(key, own, loaded[key])
            if own in full and not torch.equal(local(full[own]), local(loaded[key])):
                raise StateError(f"{key!r} is tied to another key of the model that has different values. {WAY_OUT}")
            full.setdefault(own, loaded[key])
    model.load_state_dict(loaded)
    for p, value in full.items():
        if p in owners and p.dtype in LOW:
            _set(owners[p], value)


def _members(optimizer: Optimizers) -> list[SteppedParameter]:
    found: list[object] = [optimizer]
    if isinstance(optimizer, Iterable) and not isinstance(optimizer, nn.Module):
        found = list(optimizer)
    return [each for one in found for group in members(checked_optimizer(one, ORDER)) for each in group]


def _is_held(state: Mapping[str, object]) -> bool:
    return bool(named_state(state).companion_kinds())


def _set(own: SteppedParameter, value: Tensor) -> None:
    want = own.stepper.groups.check(own.group).want
    if not want.master and not _is_held(own.state):
        return
    with torch.no_grad():
        # Needed to hold them before the first step as well.
        stepped, plan, state = own.stepper.in_place_of(own.p), own.plan(), own.stepper.optimizer.state[own.p]
        make_missing([state], [stepped], [plan], [plan.storage_plan(stepped, want)], own.group["capturable"])
        named_state(state).set_weights(local(stepped.detach()), value.to(stepped.device))
        own.stepper.take_over(own.p)


# ---- the given state_dict


def _check_keys(ours: Group, given: Mapping[str, object]) -> None:
    missing, unknown = sorted(ours.keys() - given.keys()), sorted(map(str, given.keys() - ours.keys()))
    if missing or unknown:
        found = lacks_and_has("the state_dict", missing, unknown, "the model")
        raise StateError(
            f"{found}. {WAY_OUT} Prefixes such as 'module.' and '_orig_mod.' "
            "come from wrappers: load into the model that was saved."
        )


def _check(key: str, own: Tensor, value: object) -> None:
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_nested or value.is_meta:
        raise StateError(f"{key!r} must be a dense tensor with values, but is a {type(value).__name__}. {WAY_OUT}")
    if value.shape != own.shape:
        raise StateError(
            f"{key!r} must have the shape {tuple(own.shape)}, but has {tuple(value.shape)}. {WAY_OUT} For sharded "
            "weights, pass whole tensors or DTensors."
        )
    if own.dtype in FLOATING and value.dtype not in FLOATING:
        raise StateError(f"{key!r} must have a floating-point dtype of 16 to 64 bits, but has {value.dtype}. {WAY_OUT}")


def _placed(key: str, own: Any, value: Tensor) -> Tensor:
    """Return a tensor with the placements from which it can be copied."""
    if not is_dtensor(own):
        if is_dtensor(value):
            raise StateError(f"{key!r} is sharded, but the model's is not. Pass its full_tensor().")
        return value
    value = value if is_dtensor(value) else value.to(own.device)
    return placed(repr(key), value, own.device_mesh, own.placements, "Pass full_tensor().")


class SteppedParameter(NamedTuple):
    """A parameter, with the steps of its optimizer and its group."""

    stepper: Stepper
    group: GroupDict
    p: Tensor
    name: str

    @property
    def state(self) -> StateDict:
        """The optimizer's state for it, if any."""
        found: State = self.stepper.optimizer.state.get(self.p, {})
        return found

    def plan(self) -> Plan:
        """Return the plan of its step."""
        return self.stepper.planner.plan_for(self.p, self.stepper.settings_of(self.group), self.name)


def checked_optimizer(optimizer: object, call: str) -> Optimizer:
    """Return the optimizer; raise if it is not one of ours. `call` shows the order of the arguments."""
    if not isinstance(optimizer, Optimizer):
        wraps = isinstance(optimizer, torch.optim.Optimizer)
        way_out = "If it wraps one, pass that one." if wraps else f"The order is {call}."
        raise HyperparameterError(sentence("optimizer", "an optimizer of layerwise.torch", optimizer, way_out))
    return optimizer


def members(optimizer: Optimizer) -> list[list[SteppedParameter]]:
    """Return the parameters of each group."""
    stepper = stepper_of(optimizer)
    each = [(group, stepper.members.named(i)) for i, group in enumerate(optimizer.param_groups)]
    return [[SteppedParameter(stepper, group, p, name) for p, name in own] for group, own in each]
