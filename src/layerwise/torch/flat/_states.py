"""Checkpoints of flat shards, in the form that one process with whole tensors would save."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import torch

from layerwise.core.slot import entries_of_others, own_entries
from layerwise.errors import StateError
from layerwise.torch._optimizer import Optimizer
from layerwise.torch.arrays._library import named_state
from layerwise.torch.checkpoints import _matching
from layerwise.torch.checkpoints._loading import checked_state
from layerwise.torch.checkpoints._saving import saved_form, saved_state
from layerwise.torch.flat._buffers import FlatBuffer, local_entry, local_state
from layerwise.torch.groups._members import State
from layerwise.torch.sharding._cuts import division_of
from layerwise.torch.sharding._dtensors import is_dtensor, on_host
from layerwise.torch.step._plan import Plan
from layerwise.torch.step._stepper import stepper_of
from layerwise.torch.tools._weights import SteppedParameter, checked_optimizer, members

if TYPE_CHECKING:
    from torch.optim.optimizer import StateDict


def full_state_dict(optimizer: Optimizer) -> StateDict:
    """Return the state_dict that one process with whole tensors would have, in host memory.

    All ranks call this together, and each returns the whole. Parameters are the tensors that the buffers hold, by name.

    Args:
        optimizer: An optimizer of flat buffers.
    """
    states: dict[object, State] = {}
    numbers, groups = count(), []
    with _buffers(optimizer) as ours:
        parts = saved_form(optimizer, partial(torch.optim.Optimizer.state_dict, optimizer))
        for group, packed in zip(ours, parts["param_groups"], strict=True):
            own = [pair for one in group for pair in one.plan().whole(one.state).items()]
            keys = [next(numbers) for _ in own]
            groups.append({**packed, "params": keys, "param_names": [name for name, _ in own]})
            states |= {key: saved_state(state) for key, (_, state) in zip(keys, own, strict=True) if state}
    return {"state": {**states, **_matching.entries_beside_params(parts)}, "param_groups": groups}


def load_full_state_dict(optimizer: Optimizer, state_dict: StateDict) -> None:
    """Load a state_dict of whole tensors into an optimizer of flat buffers. Each rank takes the part that it holds.

    Tensors are matched by name if the state_dict has names. A state_dict that does not fit raises StateError and
    changes nothing.

    Args:
        optimizer: An optimizer of flat buffers.
        state_dict: The result of `full_state_dict`, or the state_dict of an optimizer that has the tensors whole.
    """
    _matching.check_form(state_dict)
    with _buffers(optimizer) as ours:
        optimizer.load_state_dict(_cut(ours, state_dict))


@contextmanager
def _buffers(optimizer: Optimizer) -> Iterator[list[list[SteppedParameter]]]:
    """Let the groups hold their buffers, which DeepSpeed adds one by one to step them, and yield these."""
    kept = [group["params"] for group in checked_optimizer(optimizer, "full_state_dict(optimizer)").param_groups]
    for group, own in zip(optimizer.param_groups, stepper_of(optimizer).members.buffers, strict=False):
        group["params"] = list(own)
    try:
        yield members(optimizer)
    finally:
        for group, params in zip(optimizer.param_groups, kept, strict=True):
            group["params"] = params


def _cut(ours: list[list[SteppedParameter]], state_dict: StateDict) -> State:
    names = [[tensor for one in group for tensor in division_of(one.p).names(one.name)] for group in ours]
    found = _matching.matched_params([{"params": each, "param_names": each} for each in names], state_dict)
    states: dict[object, State] = {}
    groups, numbers = [], count()
    for number, (matched, each) in enumerate(zip(found, ours, strict=True)):
        saved_states = (state_dict["state"].get(key) for _, key in matched)
        by_name = {one: state for one, state in zip(names[number], saved_states, strict=True) if state}
        own = [next(numbers) for _ in each]
        called = {"params": own, "param_names": [one.name for one in each]}
        groups.append({**_matching.source_of(number, matched, state_dict["param_groups"]), **called})
        for i, one in zip(own, each, strict=True):
            tensors = division_of(one.p).names(one.name)
            if wholes := {name: by_name[name] for name in tensors if name in by_name}:
                states[i] = _local(one, wholes)
    return {"state": {**states, **_matching.entries_beside_params(state_dict)}, "param_groups": groups}


def _local(own: SteppedParameter, wholes: Mapping[str, State]) -> State:
    plan = own.plan()
    if not isinstance(plan.division, FlatBuffer):
        [found] = wholes.values()
        return dict(found)
    each = {one.name: _numbers(plan, one, wholes.get(one.name)) for one in plan.stored_together}
    steps = {int(state.pop("step")) for state in each.values()}
    if len(steps) > 1:
        raise StateError(
            f"the tensors in {own.name} have taken {sorted(steps)} steps, but a flat buffer has one count. Keep them "
            "in separate parameters (use_orig_params=True), or leave the state out."
        )
    keys = dict.fromkeys(key for state in each.values() for key in state)
    parts = {key: {name: state[key] for name, state in each.items() if key in state} for key in keys}
    here = {key: local_state(plan, own.p, key, x) for key, x in own_entries(parts).items()}
    theirs = {key: local_entry(plan, own.p, key, x) for key, x in entries_of_others(parts).items()}
    return {"step": torch.tensor(steps.pop()), **here, **theirs}


def _numbers(plan: Plan, member: Plan, state: object) -> State:
    """Return the state of a whole tensor, with numbers in place of codes."""
    if not isinstance(state, Mapping) or "step" not in state:
        raise StateError(f"the checkpoint has state for some tensors of {plan.name}, but none for {member.name}.")
    whole = {key: on_host(x) if is_dtensor(x) else x for key, x in state.items()}
    own, theirs = checked_state(member, whole, {})
    return named_state({**theirs, **own}).all_in_floating_point()
