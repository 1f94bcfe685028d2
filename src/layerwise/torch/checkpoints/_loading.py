"""The loading of a checkpoint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from layerwise.errors import HyperparameterError, StateError, warn
from layerwise.hyper import Hyper, in_words
from layerwise.torch.checkpoints import _matching, _origin
from layerwise.torch.checkpoints._matching import MOVED, same
from layerwise.torch.sharding._owner import stepper_of
from layerwise.torch.step import _state
from layerwise.torch.step._due import RATES
from layerwise.torch.step._kinds import RULE
from layerwise.torch.step._namespace import named_state
from layerwise.torch.step._plan import WAY_OUT
from layerwise.torch.step._settings import Groups

AS_GIVEN = ("state_dtype",)  # state is put in the form that is asked for here
GONE = ("reproducible",)  # an option that groups of earlier checkpoints may name
CONVERTED = "lr_in_momentum"  # LARS's momentum is put in the form in which the optimizer keeps it


@torch._disable_dynamo  # type: ignore[attr-defined]  # as PyTorch's is
def load(optimizer: Any, state_dict: Any) -> None:
    """Load a checkpoint, checked after the caller's hooks have had it.

    PyTorch's own loading would take all state to the parameter's device, and cast it to its dtype, which rounds float32
    moments of bfloat16 parameters. If it need not cast, it keeps the checkpoint's tensors: the next step would write to
    them, and to both of two states that were saved as one.
    """
    loaded = dict(state_dict) if isinstance(state_dict, Mapping) else state_dict
    for hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        changed = hook(optimizer, loaded)
        loaded = loaded if changed is None else changed
    groups, state, warnings = _checked(optimizer, loaded)
    for warning in warnings:  # before anything is changed, since a warning may be an error
        warn(warning)
    optimizer.__setstate__({"state": defaultdict(dict, state), "param_groups": groups})
    _put_in_form(optimizer)
    for hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        hook(optimizer)


def _checked(optimizer: Any, loaded: Any) -> tuple[list[dict[str, Any]], dict[Tensor, dict[str, Any]], list[str]]:
    """Return groups, states by parameter and warnings, or raise if the optimizer cannot continue from a checkpoint."""
    _matching.check_form(loaded)
    stepper, ours = stepper_of(optimizer), optimizer.param_groups
    groups, kinds = stepper.groups, stepper.groups.kinds
    _origin.check(loaded)
    named = [stepper.members.named(i) for i in range(len(ours))]
    found = _matching.aligned(ours, loaded)
    begun = [_placed(group, _matching.source_of(i, found[i])) for i, group in enumerate(ours)]
    sources = _with_own_rates(groups, ours, begun)
    state: dict[Tensor, dict[str, Any]] = {}
    for number, (group, source, members, names) in enumerate(zip(ours, sources, found, named, strict=True)):
        _origin.check_group(number, kinds.of(group).hyper.optimizer, [saved for saved, _ in members])
        h = _settings(stepper, group, source)
        for (p, name), (_, key) in zip(names, members, strict=True):
            one = loaded["state"].get(key, {})
            if not isinstance(one, Mapping) or one:
                own = _state.checked(stepper.planner.plan_for(p, group, h, name), one)
                _convert_momentum(name, own, begun[number], h)
                state[p] = _copies(own, p.device, stepper.setup.offload, group["capturable"])
    due = _warnings(groups, ours, begun, sources, _matching.regrouped(found))
    return [_options(groups, *each) for each in zip(ours, sources, strict=True)], state, list(due)


def _copies(state: Mapping[str, Tensor], device: torch.device, offload: bool, capturable: bool) -> dict[str, Any]:
    """Return tensors of the optimizer's own, in the dtype they were saved in; counts stay where they were read."""
    if offload:
        return {key: x.detach().to("cpu", copy=True) for key, x in state.items()}
    stays = () if capturable else ("step",)
    return {key: x.detach().to(x.device if key in stays else device, copy=True) for key, x in state.items()}


def _moved(group: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    taken = {name: saved[name] for name in MOVED if name in saved and name in group}
    return {name: tuple(x) if isinstance(x, list) else x for name, x in taken.items()}


def _options(groups: Groups, group: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return our group with the checkpoint's values of rates that schedulers move, and of keys that are no options of
    ours.
    """
    not_taken = {*groups.known(group), *_origin.MEANING, *GONE, RULE, "params", "param_names"}
    others = {name: _copied(name, x) for name, x in saved.items() if name not in not_taken}
    return {**group, **others, **_moved(group, saved)}


def _copied(name: str, value: Any) -> Any:
    try:
        return deepcopy(value)
    except Exception as problem:  # whatever that object raises
        raise StateError(
            f"{name!r} of a group of the checkpoint cannot be copied ({type(problem).__name__}). Leave it out."
        ) from problem


def _placed(group: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved group with its own rates: as tensors if a captured step needs them."""
    saved = _with_role(group, saved)
    rates = {name: saved[name] for name in RATES if isinstance(saved.get(name), Tensor)}
    device = group["params"][0].device if group["capturable"] and group["params"] else None
    return {**saved, **{name: rate.detach().to(device or rate.device, copy=True) for name, rate in rates.items()}}


def _with_own_rates(groups: Groups, ours: Sequence[Any], begun: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the saved groups with our rates if another rule steps any of them, for which theirs mean something else.

    A group that takes no ratio, as biases do in LAMB, has AdamW's rule but goes with the others, not with the old run.
    """
    pairs = list(zip(ours, begun, strict=True))
    rules = [groups.kinds.of(group).hyper.optimizer for group in ours]
    if all(_origin.same_rule(saved.get(RULE), rule, group) for (group, saved), rule in zip(pairs, rules, strict=True)):
        return begun
    each = ({**saved, **_moved(saved, group)} for group, saved in pairs)
    return [{name: x for name, x in saved.items() if name != "initial_lr"} for saved in each]


def _with_role(group: Mapping[str, Any], saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the saved group with the role of its lr; if that is open, None means a relative step."""
    if "lr" not in saved or "relative_step" not in group:
        return saved
    relative = saved["lr"] is None
    role = group["relative_step"] or "factor" if relative else saved.get("relative_step") or False
    if role == "cap" and group["relative_step"] == "factor":  # what is lr there is lr_cap here
        kept = {name: x for name, x in saved.items() if name not in ("lr", "initial_lr", "relative_step")}
        return {**kept, "lr_cap": saved["lr"]}
    lr = group["lr"] if relative and group["relative_step"] else saved["lr"]
    scaled = {"scale_parameter": relative} if saved.get("scale_parameter", False) is None else {}
    return {**saved, "lr": lr, "relative_step": role, **scaled}


def _settings(stepper: Any, group: Mapping[str, Any], saved: Mapping[str, Any]) -> Hyper:
    """Return our settings with the rates to take over, or raise if these are invalid, or turn a rate into the relative
    step or back.
    """
    there, here = saved.get("relative_step"), group.get("relative_step")
    if "lr" in saved and (there != here or saved["lr"] is None):
        raise StateError(
            f"the checkpoint was written with lr={saved['lr']}, relative_step={there!r}, and this optimizer has "
            f"lr={group['lr']}, relative_step={here!r}: lr means something else. {WAY_OUT}"
        )
    try:
        found: Hyper = stepper.settings_of({**group, **_moved(group, saved)})
    except HyperparameterError as problem:
        raise StateError(f"the checkpoint cannot be right: {problem}") from None
    return found


def _convert_momentum(name: str, state: dict[str, Any], saved: Mapping[str, Any], h: Any) -> None:
    """Convert LARS's momentum to this optimizer's form: with lr in it, or without."""
    buffer, within = state.get("momentum_buffer"), getattr(h, CONVERTED, False)
    if buffer is not None and saved.get(CONVERTED, within) != within:
        lr = _state.checked_lr(name, saved.get("lr", 0), within)
        named_state(state).multiply("momentum_buffer", lr, inverse=not within)


def _put_in_form(optimizer: Any) -> None:
    """Put loaded state in the form that is wanted here, but not the weights: the model's own may be loaded later."""
    stepper = stepper_of(optimizer)
    for number, group in enumerate(optimizer.param_groups):
        stepper.groups.see(group)
        want, h = stepper.groups.wanted(group), stepper.settings_of(group)
        for p, name in stepper.members.named(number):
            if p in optimizer.state:
                plan, stepped = stepper.planner.plan_for(p, group, h, name), stepper.in_place_of(p)
                plan.storing(stepped, want).put_state_in_form(stepped, optimizer.state[p])


def _warnings(groups: Groups, ours: Any, begun: Any, sources: Any, regrouped: bool) -> Iterator[str]:
    """Yield what became of the rates of another rule or of other groups, and which options differ."""
    if sources is not begun:
        pairs = list(zip(ours, begun, strict=True))
        if seen := dict.fromkeys(one for each in pairs for one in _matching.differing(*each)):
            rules = " and ".join({saved[RULE]: None for _, saved in pairs if RULE in saved})
            yield (
                f"the checkpoint's steps were those of {rules}, so rates stay as given here: {', '.join(seen)}. To "
                "change them, set them in `param_groups`."
            )
    elif regrouped or 0 < sum("lr" in saved for saved in sources) < len(sources):
        rates = {
            f"group {i}": {name: saved[name] for name in MOVED if name in saved} for i, saved in enumerate(sources)
        }
        yield f"the checkpoint's groups are not these. States go by name, and rates come from there as follows: {rates}"
    differing = {}
    for group, saved in zip(ours, sources, strict=True):
        passed = {*MOVED, *AS_GIVEN, *([CONVERTED] if "momentum" in group else [])}
        for name in [one for one in groups.known(group) if one in saved and one not in passed]:
            if not same(in_words(saved[name]), in_words(group[name])):
                differing[name] = in_words(saved[name])
    if differing:
        yield f"the checkpoint was written with other options, which do not replace those given here: {differing}"
