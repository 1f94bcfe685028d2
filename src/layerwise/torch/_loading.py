"""How a checkpoint is taken over."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from layerwise.errors import HyperparameterError, StateError
from layerwise.torch import _state
from layerwise.torch._settings import RATES, named

# What schedulers move in the course of a run, and a resumed run has to find where it was.
MOVED = ("lr", "weight_decay", "betas", "momentum")


def load(optimizer: Any, load_as_torch_does: Callable[[Any], None], state_dict: Any) -> None:
    """Load a checkpoint, judged after the caller's hooks have had it, and put right what torch's loading changes."""
    given = [{name: group[name] for name in optimizer.defaults} for group in optimizer.param_groups]
    taken: list[dict[str, Any]] = []

    def before(_: Any, loaded: Any) -> dict[str, Any]:
        taken.append(_checked(optimizer, loaded))
        return taken[0]

    def after(_: Any) -> None:
        _keep_dtypes(optimizer, taken[0])
        differing = _keep_options(optimizer, given, taken[0]["param_groups"])
        if differing:
            said = f"the checkpoint was written with other options, which do not replace those given here: {differing}"
            warnings.warn(said, stacklevel=5)

    if not isinstance(state_dict, Mapping):
        raise StateError(f"a checkpoint must be a dict, but is {state_dict!r}. Pass what state_dict() gave.")
    hooks = [
        optimizer.register_load_state_dict_pre_hook(before),
        optimizer.register_load_state_dict_post_hook(after, prepend=True),
    ]
    try:
        load_as_torch_does(state_dict)
    finally:
        for hook in hooks:
            hook.remove()


def _checked(optimizer: Any, loaded: Mapping[str, Any]) -> dict[str, Any]:
    _check_form(loaded)
    by_id = dict(_pairs(optimizer, loaded))
    unknown = loaded["state"].keys() - by_id.keys()
    if unknown:
        raise StateError(f"the checkpoint has state of {sorted(map(str, unknown))}, which belongs to no parameter.")
    groups = [_placed(*each) for each in zip(optimizer.param_groups, loaded["param_groups"], strict=True)]
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        _check_rates(optimizer, group, saved)
    state = {}
    for key, one in loaded["state"].items():
        if one != {}:
            p, name, group = by_id[key]
            plan = optimizer.plan_for(p, optimizer.settings_of(group), name)
            state[key] = _state.checked(plan, one)
    return {**loaded, "state": state, "param_groups": groups}


def _placed(group: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """The saved group with rates of its own: tensors where a captured step needs them, if they were moved to load."""
    saved = _with_role(group, saved)
    rates = {name: saved[name] for name in RATES if isinstance(saved.get(name), Tensor)}
    device = group["params"][0].device if group["capturable"] and group["params"] else None
    return {**saved, **{name: rate.detach().to(device or rate.device, copy=True) for name, rate in rates.items()}}


def _with_role(group: Mapping[str, Any], saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """The saved group with what its lr is; checkpoints that leave that open have None for a relative step."""
    if "lr" not in saved or "relative_step" not in group:
        return saved
    relative = saved["lr"] is None
    role = (group["relative_step"] if relative else saved.get("relative_step")) or False
    lr = group["lr"] if relative and role else saved["lr"]
    scaled = {"scale_parameter": relative} if saved.get("scale_parameter", False) is None else {}
    return {**saved, "lr": lr, "relative_step": role, **scaled}


def _check_form(loaded: Mapping[str, Any]) -> None:
    for key, kind in (("state", Mapping), ("param_groups", (list, tuple))):
        if not isinstance(loaded.get(key), kind):
            raise StateError(f"the checkpoint must have {key!r}. Pass what state_dict() gave, all of it.")
    for group in loaded["param_groups"]:
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), (list, tuple)):
            raise StateError(f"a group of the checkpoint lacks its 'params': {group!r}.")


def _check_rates(optimizer: Any, group: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """What will be taken over has to be right, and must not turn a rate into the relative step or back."""
    there, here = saved.get("relative_step"), group.get("relative_step")
    if "lr" in saved and (there != here or saved["lr"] is None):
        raise StateError(
            f"the checkpoint was written with lr={saved['lr']}, relative_step={there!r}, and this optimizer has "
            f"lr={group['lr']}, relative_step={here!r}: lr means something else. {_state.WAY_OUT}"
        )
    try:
        optimizer.settings_of({**group, **{name: saved[name] for name in MOVED if name in saved and name in group}})
    except HyperparameterError as problem:
        raise StateError(f"the checkpoint cannot be right: {problem}") from None


def _pairs(optimizer: Any, state_dict: Mapping[str, Any]) -> Any:
    """Each parameter's id in the checkpoint, with the parameter, its name and its group."""
    ours, theirs = optimizer.param_groups, state_dict["param_groups"]
    sizes = [len(group["params"]) for group in ours], [len(group["params"]) for group in theirs]
    if sizes[0] != sizes[1]:
        raise StateError(f"the checkpoint has groups of {sizes[1]} parameters, and this optimizer of {sizes[0]}.")
    for i, (group, saved) in enumerate(zip(ours, theirs, strict=True)):
        for (p, name), key in zip(named(group, i), saved["params"], strict=True):
            yield key, (p, name, group)


def _keep_dtypes(optimizer: Any, saved: Mapping[str, Any]) -> None:
    # torch casts state to the parameter's dtype, which would round float32 moments of bfloat16 parameters.
    keys = chain.from_iterable(group["params"] for group in saved["param_groups"])
    params = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for key, p in zip(keys, params, strict=True):
        for name, value in saved["state"].get(key, {}).items():
            if isinstance(value, Tensor) and optimizer.state[p][name].dtype != value.dtype:
                device = optimizer.state[p][name].device
                optimizer.state[p][name] = value.detach().to(device, copy=True)


def _keep_options(optimizer: Any, given: list[dict[str, Any]], saved: list[dict[str, Any]]) -> dict[str, Any]:
    differing = {}
    for group, own, theirs in zip(optimizer.param_groups, given, saved, strict=True):
        for name, value in own.items():
            if name in MOVED and name in theirs:
                group[name] = tuple(theirs[name]) if isinstance(theirs[name], list) else theirs[name]
                continue
            group[name] = value
            if name in theirs and not _same(theirs[name], value):
                differing[name] = theirs[name]
    return differing


def _same(a: Any, b: Any) -> bool:
    a, b = (tuple(x) if isinstance(x, list) else x for x in (a, b))
    return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else bool(a == b)
