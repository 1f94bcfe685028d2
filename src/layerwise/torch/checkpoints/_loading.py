"""The loading of a checkpoint: its writer, the match of its entries, and whether all of it fits. Only then is it
used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Set
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from layerwise.catalog.registry import ENTRIES
from layerwise.core.plan import with_names
from layerwise.core.slot import own_entries, possible_names
from layerwise.engines import compiled
from layerwise.errors import StateError, shown, warn
from layerwise.options.checks import alternatives
from layerwise.rules.states import is_of_layer, is_statistic
from layerwise.torch.arrays._library import named_state
from layerwise.torch.checkpoints import _groups, _matching
from layerwise.torch.checkpoints._groups import CONVERTED, ContinuedGroup
from layerwise.torch.checkpoints._saving import restored
from layerwise.torch.groups._members import State
from layerwise.torch.sharding._cuts import WHOLE, cuts_of
from layerwise.torch.sharding._dtensors import is_dtensor
from layerwise.torch.step._checks import resolved
from layerwise.torch.step._plan import (
    AS_SAVED,
    WAY_OUT,
    Plan,
    as_step,
    check_shapes,
    check_there,
    check_values,
    parts_of,
)
from layerwise.torch.step._stepper import Stepper, stepper_of

if TYPE_CHECKING:
    from torch.optim.optimizer import StateDict


@torch._disable_dynamo  # type: ignore[attr-defined]  # as PyTorch's is
def load(optimizer: torch.optim.Optimizer, state_dict: StateDict) -> None:
    """Load a checkpoint, checked after the caller's hooks have seen it, or raise and change nothing.

    PyTorch's own loading would move all state to the parameter's device, and cast it to its dtype, which rounds float32
    moments of bfloat16 parameters. If it need not cast, it keeps the checkpoint's tensors: the next step would write to
    them, even if two optimizers loaded the same one.

    State stays in the format in which it was saved until the next step, which converts it to the requested one.
    """
    loaded = _as_hooks_have_it(optimizer, state_dict)
    stepper, ours = stepper_of(optimizer), optimizer.param_groups
    groups, names = stepper.groups, [stepper.members.named(number) for number in range(len(ours))]
    # Who wrote it.
    _matching.check_form(loaded)
    _groups.check_writer(loaded)
    # Match.
    found = _matching.matched_params(ours, loaded)
    beside = _matching.entries_beside_params(loaded)  # the very objects, as PyTorch passes them
    for number, (group, members) in enumerate(zip(ours, found, strict=True)):
        _groups.check_group(number, groups.rules.of(group).hyper.optimizer, [saved for saved, _ in members])
    sources = [_matching.source_of(i, members, loaded["param_groups"]) for i, members in enumerate(found)]
    # Check all.
    each = _groups.continued(stepper, ours, sources)
    state: dict[Tensor, State] = {}
    for one, named, members in zip(each, names, found, strict=True):
        state |= _states_of(stepper, one, named, [loaded["state"].get(key, {}) for _, key in members])
    made = [_groups.options(groups, one) for one in each]
    for warning in [*_groups.warnings(groups, each, _matching.regrouped(found))]:
        warn(warning)  # before anything is changed, because a warning may be an error
    # Take.
    optimizer.__setstate__({"state": defaultdict(dict, {**state, **beside}), "param_groups": made})
    for group in made:
        groups.note_keys(group)
    for hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        hook(optimizer)


def _as_hooks_have_it(optimizer: torch.optim.Optimizer, state_dict: StateDict) -> StateDict:
    loaded = dict(state_dict) if isinstance(state_dict, Mapping) else state_dict
    for hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        changed = hook(optimizer, loaded)
        loaded = loaded if changed is None else changed
    return loaded


def _states_of(
    stepper: Stepper, one: ContinuedGroup, named: list[tuple[Tensor, str]], saved: list[Any]
) -> dict[Tensor, State]:
    """Return the states of a group's parameters; raise if one of them does not fit."""
    found: dict[Tensor, State] = {}
    begun = [(p, name, x) for (p, name), x in zip(named, saved, strict=True) if not isinstance(x, Mapping) or x]
    plans = _plans(stepper, one, [p for p, _, _ in begun], [name for _, name, _ in begun])
    alike: dict[object, bool] = {}
    for (p, name, x), plan in zip(begun, plans, strict=True):
        own, others = checked_state(plan, x, alike)
        _convert_momentum(name, own, one)
        own = _copies(own, p.device, stepper.setup.offload, one.ours["capturable"])
        found[p] = own | {key: tree_map(partial(_carried, name, key, p.device), value) for key, value in others.items()}
    return found


def _plans(stepper: Stepper, one: ContinuedGroup, params: list[Tensor], names: list[str]) -> list[Plan]:
    """Return the plans of a group's parameters. Those of the same shape are planned once."""
    blocks, known, found = one.checked.blocks, dict[object, Plan](), list[Plan]()
    for p, name, division in zip(params, names, cuts_of(params, names), strict=True):
        of_name = blocks.default if blocks.given is None else blocks(name)
        key = (p.shape, p.dtype, of_name) if division is WHOLE else id(p)
        if key not in known:
            known[key] = stepper.planner.plan_for(p, one.checked, name, division)
        found.append(known[key])
    return with_names(found, names)


def _convert_momentum(name: str, state: State, one: ContinuedGroup) -> None:
    """Convert LARS's momentum to this optimizer's form: with lr in it, or without."""
    within = getattr(one.checked.h, CONVERTED, False)
    if "momentum_buffer" in state and one.begun.get(CONVERTED, within) != within:
        lr = momentum_lr(name, one.begun.get("lr", 0), within)
        named_state(state).multiply("momentum_buffer", lr, inverse=not within)


def _copies(state: Mapping[str, Tensor], device: torch.device, offload: bool, capturable: bool) -> State:
    """Return copies of tensors in the dtype in which they were saved; counts stay on their device."""
    if offload:
        return {key: x.detach().to("cpu", copy=True) for key, x in state.items()}
    stays = () if capturable else ("step",)
    return {key: x.detach().to(x.device if key in stays else device, copy=True) for key, x in state.items()}


def _carried(name: str, key: str, device: torch.device, value: object) -> Any:
    """Return a copy of another program's entry for a parameter, with tensors on the parameter's device."""
    if not isinstance(value, Tensor):
        return _groups.copied(key, value)
    check_there(name, key, value)
    return value.detach().to(device, copy=True)


def momentum_lr(name: str, lr: Any, within: bool) -> float:
    """Return the lr to multiply LARS's momentum by if it is to be `within`, or to divide it by if not."""
    if not float(lr) > 0:
        raise StateError(
            f"the momentum of {name} was saved at lr={float(lr):g} with lr_in_momentum={not within}, and cannot be "
            f"converted to the other form. Create the optimizer with lr_in_momentum={not within}."
        )
    return float(lr)


def checked_state(plan: Plan, state: object, alike: dict[object, bool]) -> tuple[State, State]:
    """Return a loaded state, if it fits its parameter, and other programs' entries.

    Equal states of several parameters are checked once, for the first of them; `alike` holds the checked ones, and
    whether their groups can stay.
    """
    name = plan.name
    if not isinstance(state, Mapping):
        raise StateError(f"the state of {name} must be a dict, but is {shown(state)}. {AS_SAVED}")
    own = own_entries(state)
    others = state.items() if len(own) < len(state) else ()
    theirs = {key: _beside(plan, key, x) for key, x in others if key not in own}
    if theirs and not own:
        return {}, theirs
    own = restored(own, plan.shape)
    if (kind := _kind(plan, own)) is None or kind not in alike:
        _check_loaded(plan, own)
        codes = named_state(own)
        alike[kind] = not codes.coded_fields() or not (codes.is_former() or plan.why_not_grouped())
    if not alike[kind]:
        own = _ungrouped(own)
    step = as_step(name, own.pop("step"))
    if kind is None or plan.is_cut or not compiled.in_memory(list(own.values())):
        own = {key: plan.placed(key, resolved(value)) for key, value in own.items()}
    return {**own, "step": step}, theirs


def _kind(plan: Plan, state: State) -> Hashable:
    """Return everything that decides whether a state fits, apart from its numbers; None if more matters."""
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
        has = [key for key in state if key != "step"] if "step" in state else [*state, "no 'step'"]
        there = alternatives([*map(str, has)], "and") if has else "nothing"
        keeps = alternatives(sorted(needed), "and") if needed else "nothing"
        raise StateError(
            f"the state of {plan.name} does not fit: it has {there}, but {plan.h.optimizer} keeps {keeps} "
            f"with these options. {_where_it_fits(plan, needed, unknown, has)}"
        )
    for key in state.keys() - {"step"}:
        check_values(plan, parts[key], key, state[key])
        check_there(plan.name, key, state[key])
    check_shapes(plan, parts, state)


def _where_it_fits(plan: Plan, needed: Collection[str], unknown: Set[str], has: Collection[str]) -> str:
    """Return the optimizers to which a state belongs, or advice about options if it may be this one's."""
    if unknown <= possible_names(plan.rule.State._fields):
        return WAY_OUT
    if {*needed} <= {*has}:
        return f"Leave out {alternatives(sorted(map(str, unknown)), 'and')}."
    others = [name for name, entry in ENTRIES.items() if {*has} == _always_kept(entry.rule)]
    into = f"Load it into {alternatives(others)}" if others else "Convert it first"
    return f"{into}, or start {plan.h.optimizer} without state."


def _always_kept(rule: ModuleType) -> set[str]:
    """Return the fields that are as large as the tensor whatever the options are."""
    fields: tuple[str, ...] = rule.State._fields
    few = {field for field in fields if is_of_layer(rule, field) or is_statistic(rule, field)}
    usual: Mapping[str, object] = rule.State._field_defaults
    return {*fields} - few - usual.keys()


def _beside(plan: Plan, key: str, x: object) -> Any:
    """Return an entry of another program, cut like the parameter if it has the parameter's shape."""
    if not isinstance(x, Tensor) or is_dtensor(x) or tuple(x.shape) != plan.shape:
        return x
    return plan.placed(key, x)


def _ungrouped(state: State) -> State:
    """Return the state with numbers in place of groups, which would not survive the cut of the parameter, or whose
    format is not written any more.

    If they are already cut in another way, the ranks gather them first.
    """
    parts = {key for pair in named_state(state).coded_fields().items() for key in pair}
    whole = {key: x.full_tensor() if key in parts and is_dtensor(x) else x for key, x in state.items()}
    return named_state(whole).all_in_floating_point()
