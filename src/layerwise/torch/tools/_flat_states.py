"""Checkpoints of flat shards, in the form that one process with whole tensors would save."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor

from layerwise.errors import HyperparameterError, StateError, sentence
from layerwise.torch._optimizer import Optimizer
from layerwise.torch.checkpoints import _matching
from layerwise.torch.sharding._cuts import is_dtensor
from layerwise.torch.sharding._flat import flat_of, tensors_of
from layerwise.torch.sharding._gathering import Places, put_whole, put_whole_in_boxes, whole_of, whole_of_boxes
from layerwise.torch.step._bytes import restored, saved
from layerwise.torch.step._flat_plan import FlatPlan, extents, holding
from layerwise.torch.step._storage import named_state

State = dict[str, Any]


def full_state_dict(optimizer: Optimizer) -> dict[str, Any]:
    """Return the state_dict that one process with whole tensors would have, in the host's memory.

    All ranks call this together, and each returns the whole. Parameters are the tensors that the buffers hold, by name.

    Args:
        optimizer: An optimizer of flat buffers.
    """
    with _with_buffers(_checked(optimizer)):
        return _full_state_dict(optimizer)


def _full_state_dict(optimizer: Optimizer) -> dict[str, Any]:
    states: dict[int, State] = {}
    numbers, groups = count(), []
    kept = optimizer.state_dict()["param_groups"]
    for number, (group, as_saved) in enumerate(zip(optimizer.param_groups, kept, strict=True)):
        own: list[tuple[str, State]] = []
        for p, name in optimizer.stepper.members.named(number):
            plan = _plan_of(optimizer, group, p, name)
            state = optimizer.state.get(p, {})
            own += [(name, _alone(state))] if plan is None else _whole(plan, state)
        keys = [next(numbers) for _ in own]
        groups.append({**as_saved, "params": keys, "param_names": [name for name, _ in own]})
        states |= {key: saved(state) for key, (_, state) in zip(keys, own, strict=True) if state}
    return {"state": states, "param_groups": groups}


def load_full_state_dict(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
    """Load a state_dict of whole tensors into an optimizer of flat buffers. Each rank takes the part that it holds.

    Tensors are matched by name if the state_dict has names. A state_dict that does not fit raises StateError and
    changes nothing.

    Args:
        optimizer: An optimizer of flat buffers.
        state_dict: The result of `full_state_dict`, or the state_dict of an optimizer that has the tensors whole.
    """
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= state_dict.keys():
        raise StateError("the checkpoint must have 'state' and 'param_groups'. Pass what full_state_dict gave.")
    with _with_buffers(_checked(optimizer)):
        _load(optimizer, state_dict)


@contextmanager
def _with_buffers(optimizer: Optimizer) -> Iterator[None]:
    """Let the groups hold their buffers, which DeepSpeed puts in one by one to be stepped."""
    kept = [group["params"] for group in optimizer.param_groups]
    for group, own in zip(optimizer.param_groups, optimizer.stepper.members.buffers, strict=False):
        group["params"] = list(own)
    try:
        yield
    finally:
        for group, params in zip(optimizer.param_groups, kept, strict=True):
            group["params"] = params


def _load(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
    ours = [_tensors(optimizer, number) for number in range(len(optimizer.param_groups))]
    names = [[tensor for _, _, tensors in group for tensor in tensors] for group in ours]
    found = _matching.aligned([{"params": each} for each in names], names, state_dict["param_groups"])
    states: dict[int, State] = {}
    groups, numbers = [], count()
    for number, (group, members, each) in enumerate(zip(optimizer.param_groups, found, ours, strict=True)):
        saved_states = (state_dict["state"].get(key) for _, key in members)
        by_name = {one: state for one, state in zip(names[number], saved_states, strict=True) if state}
        own = [next(numbers) for _ in each]
        called = {"params": own, "param_names": [name for _, name, _ in each]}
        groups.append({**_matching.source_of(number, members), **called})
        for i, (p, name, tensors) in zip(own, each, strict=True):
            if wholes := {one: by_name[one] for one in tensors if one in by_name}:
                states[i] = _local(optimizer, group, p, name, wholes)
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def _checked(optimizer: Any) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise HyperparameterError(sentence("optimizer", "one of layerwise.torch", optimizer, "Pass the optimizer."))
    return optimizer


def _tensors(optimizer: Optimizer, number: int) -> list[tuple[Tensor, str, list[str]]]:
    """Return the parameters of a group, each with its name and those of its tensors."""
    return [(p, name, tensors_of(p, name)) for p, name in optimizer.stepper.members.named(number)]


def _plan_of(optimizer: Optimizer, group: Mapping[str, Any], p: Tensor, name: str) -> FlatPlan | None:
    if flat_of(p) is None:
        return None
    plan = optimizer.stepper.plan_for(p, group, optimizer.stepper.settings_of(group), name)
    return plan if isinstance(plan, FlatPlan) else None


def _alone(state: Mapping[str, Any]) -> State:
    """Return the state of a tensor that is no flat buffer, whole and in the host's memory."""
    return {key: _on_host(x) if isinstance(x, Tensor) else x for key, x in state.items()}


def _on_host(x: Any) -> Tensor:
    whole: Tensor = x.full_tensor() if is_dtensor(x) else x
    return whole.detach().to("cpu", copy=True)


# ---- one buffer


def _places(plan: FlatPlan, key: str, rank: int) -> tuple[Places, int]:
    """Return the places of a rank's boxes' parts of a state, and the number of its numbers."""
    held, lengths = holding(plan.rule, plan.members, plan.flat, rank, plan.elementwise)
    found = []
    for one in held:
        extends, place = extents(plan.rule, one.piece)[key], one.fields[key]
        if extends is not None and place is not None:
            found.append((one.spread.name, one.piece, one, extends, place))
    return found, lengths[key]


def _whole(plan: FlatPlan, state: Mapping[str, Any]) -> list[tuple[str, State]]:
    found: dict[str, State] = {one.name: {} for one in plan.members}
    for key, x in sorted(state.items()):  # in an order that is the same on all ranks
        if key == "step":
            each = {name: x.clone() for name in found}
        elif plan.elementwise.get(key, True):
            each = whole_of(plan.flat, x)
        else:
            places, lengths = zip(*(_places(plan, key, rank) for rank in range(plan.flat.parts)), strict=True)
            each = whole_of_boxes(plan.flat, x, places, lengths, _shapes(plan, key))
        for name, one in each.items():
            found[name][key] = one
    return list(found.items())


def _shapes(plan: FlatPlan, key: str) -> dict[str, tuple[int, ...]]:
    shapes = {one.name: one.state_shapes[key] for one in plan.members}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _local(optimizer: Optimizer, group: Mapping[str, Any], p: Tensor, name: str, wholes: Mapping[str, Any]) -> State:
    """Return a parameter's state, given those of the tensors that it has parts of."""
    plan = _plan_of(optimizer, group, p, name)
    if plan is None:
        [found] = wholes.values()
        return dict(found)
    each = {one.name: _numbers(plan, one, wholes.get(one.name)) for one in plan.members}
    steps = {int(state["step"]) for state in each.values()}
    if len(steps) > 1:
        raise StateError(
            f"the tensors in {name} have taken {sorted(steps)} steps, and a flat buffer has one count. Keep them in "
            "parameters of their own (use_orig_params=True), or leave the state out."
        )
    found = {"step": torch.tensor(steps.pop())}
    keys = dict.fromkeys(key for state in each.values() for key in state if key != "step")
    for key in keys:
        found[key] = _put(plan, p, key, {name: state[key] for name, state in each.items() if key in state})
    return found


def _numbers(plan: FlatPlan, member: Any, state: Any) -> State:
    """Return the state of a whole tensor with numbers for codes, if it is one."""
    if not isinstance(state, Mapping) or "step" not in state:
        raise StateError(f"the checkpoint has state of some tensors in {plan.name}, and none of {member.name}.")
    found = named_state(restored(state, member.shape)).in_numbers()
    for key, x in found.items():
        shape = member.state_shapes.get(key, member.shape)
        if key != "step" and (shape is None or not isinstance(x, Tensor) or tuple(x.shape) != shape):
            shown = tuple(x.shape) if isinstance(x, Tensor) else x
            raise StateError(
                f"{key!r} of {member.name} must have the shape {shape}, but has {shown}. Pass a state_dict of whole "
                "tensors, of an optimizer with these options."
            )
    return found


def _put(plan: FlatPlan, p: Tensor, key: str, wholes: Mapping[str, Tensor]) -> Tensor:
    dtypes = {x.dtype for x in wholes.values()}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    here = {name: _on_host(x).to(p.device) for name, x in wholes.items()}
    if plan.elementwise.get(key, True):
        values = torch.zeros(p.shape, dtype=dtype, device=p.device)
        put_whole(plan.flat, values, here)
    else:
        places, length = _places(plan, key, plan.flat.rank)
        values = torch.zeros(length, dtype=dtype, device=p.device)
        put_whole_in_boxes(values, places, here)
    return values
