"""The loading of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor

from layerwise.errors import HyperparameterError, StateError, warn
from layerwise.hyper import in_words
from layerwise.torch.checkpoints import _matching, _origin
from layerwise.torch.checkpoints._matching import MOVED, same
from layerwise.torch.sharding._owner import stepper_of
from layerwise.torch.step import _state
from layerwise.torch.step._due import RATES
from layerwise.torch.step._kinds import RULE
from layerwise.torch.step._plan import WAY_OUT
from layerwise.torch.step._storage import named_state, storing

ALWAYS = ("capturable",)  # what torch asks of a group
AS_GIVEN = ("state_dtype",)  # state is put in the form that is asked for here
CONVERTED = "lr_in_momentum"  # LARS's momentum is put in the form in which the optimizer keeps it


class Taken(NamedTuple):
    """The checkpoint in loadable form: options and parameters' keys of each group, and states by key."""

    groups: list[dict[str, Any]]
    keys: list[list[Any]]
    state: dict[Any, dict[str, Any]]
    warnings: list[str]


def load(optimizer: Any, load_as_torch_does: Callable[[Any], None], state_dict: Any) -> None:
    """Load a checkpoint, checked after the caller's hooks have had it, and correct what torch's loading changes."""
    taken: list[Taken] = []
    offloads = stepper_of(optimizer).setup.offload

    def before(_: Any, loaded: Any) -> dict[str, Any]:
        taken.append(_checked(optimizer, loaded))
        for warning in taken[0].warnings:  # before anything is changed, since a warning may be an error
            warn(warning)
        groups = [
            {"params": keys, **{key: group[key] for key in (*ALWAYS, RULE) if key in group}}
            for group, keys in zip(optimizer.param_groups, taken[0].keys, strict=True)
        ]
        # By the names alone where torch would take everything to the device first.
        state = {k: dict.fromkeys(one) for k, one in taken[0].state.items()} if offloads else taken[0].state
        return {**loaded, "state": state, "param_groups": groups}

    def after(_: Any) -> None:
        for group, options in zip(optimizer.param_groups, taken[0].groups, strict=True):
            group.update(options)
            stepper_of(optimizer).groups.see(group)
        _own(optimizer, taken[0])

    if not isinstance(state_dict, Mapping):
        raise StateError(f"a checkpoint must be a dict, but is {state_dict!r}. Pass what state_dict() gave.")
    hooks = [
        optimizer.register_load_state_dict_pre_hook(before),
        optimizer.register_load_state_dict_post_hook(after, prepend=True),
    ]
    try:
        load_as_torch_does(dict(state_dict))
    finally:
        for hook in hooks:
            hook.remove()


def _checked(optimizer: Any, loaded: Mapping[str, Any]) -> Taken:
    """Return the checkpoint in loadable form, or raise if the optimizer cannot continue from it."""
    _check_form(loaded)
    ours = optimizer.param_groups
    _origin.check(stepper_of(optimizer).groups.kinds.may_write(), loaded)
    named = [stepper_of(optimizer).members.named(i) for i in range(len(ours))]
    found = _matched(ours, named, loaded)
    begun = [_placed(group, _matching.source_of(i, found[i])) for i, group in enumerate(ours)]
    sources = _with_own_rates(optimizer, begun)
    state: dict[Any, dict[str, Any]] = {}
    for number, (group, source, members, names) in enumerate(zip(ours, sources, found, named, strict=True)):
        kind = stepper_of(optimizer).groups.kinds.of(group)
        _origin.check_group(number, kind.hyper, [saved for saved, _ in members])
        _check_rates(optimizer, group, source)
        h = stepper_of(optimizer).settings_of({**group, **_moved(group, source)})
        for (p, name), (_, key) in zip(names, members, strict=True):
            one = loaded["state"].get(key)
            if key in loaded["state"] and not (isinstance(one, Mapping) and not one):
                state[key] = _state.checked(stepper_of(optimizer).planner.plan_for(p, group, h, name), one)
                _convert_momentum(name, state[key], begun[number], h)
    due = [
        *_kept(ours, begun, sources),
        *_differing(optimizer, sources),
        *(_regrouped(sources, _matching.regrouped(found)) if sources is begun else ()),
    ]
    groups = [_options(optimizer, *each) for each in zip(ours, sources, strict=True)]
    return Taken(groups, [[key for _, key in members] for members in found], state, due)


def _matched(ours: list[Any], named: list[Any], loaded: Mapping[str, Any]) -> list[list[tuple[Mapping[str, Any], Any]]]:
    """Return the saved group and key of each parameter."""
    names = [[name for _, name in members] for members in named]
    has_names = all(group.get("param_names") for group in ours if group["params"])
    found = _matching.aligned(ours, names if has_names else None, loaded["param_groups"])
    unknown = loaded["state"].keys() - {key for members in found for _, key in members}
    if unknown:
        raise StateError(f"the checkpoint has state of {sorted(map(str, unknown))}, which belongs to no parameter.")
    return found


def _moved(group: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    taken = {name: saved[name] for name in MOVED if name in saved and name in group}
    return {name: tuple(x) if isinstance(x, list) else x for name, x in taken.items()}


def _options(optimizer: Any, group: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return our group with the checkpoint's values of rates that schedulers move, and of keys that are no options of
    ours.
    """
    not_taken = {*stepper_of(optimizer).groups.known(group), *_origin.MEANING, RULE, "params", "param_names"}
    others = {name: x for name, x in saved.items() if name not in not_taken}
    own = {name: x for name, x in group.items() if name != "params"}
    return {**own, **{name: _copied(name, x) for name, x in others.items()}, **_moved(group, saved)}


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


def _with_own_rates(optimizer: Any, begun: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the saved groups with our rates if another rule steps any of them, for which theirs mean something else.

    A group that takes no ratio, as biases do in LAMB, has AdamW's rule but goes with the others, not with the old run.
    """
    kinds, pairs = stepper_of(optimizer).groups.kinds, list(zip(optimizer.param_groups, begun, strict=True))
    if all(_origin.same_rule(saved.get(RULE), kinds.of(group).hyper.optimizer, group) for group, saved in pairs):
        return begun
    own = [{name: group[name] for name in MOVED if name in saved and name in group} for group, saved in pairs]
    return [
        {**{name: x for name, x in saved.items() if name != "initial_lr"}, **rates}
        for saved, rates in zip(begun, own, strict=True)
    ]


def _kept(ours: Any, begun: Sequence[Mapping[str, Any]], sources: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what became of the rates of a checkpoint of another rule."""
    pairs = [] if sources is begun else list(zip(ours, begun, strict=True))
    if seen := dict.fromkeys(one for each in pairs for one in _matching.differing(*each)):
        rules = " and ".join({saved[RULE]: None for _, saved in pairs if RULE in saved})
        yield (
            f"the checkpoint's steps were those of {rules}, so rates stay as given here: {', '.join(seen)}. To change "
            "them, set them in `param_groups`."
        )


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


def _check_form(loaded: Mapping[str, Any]) -> None:
    for key, kind in (("state", Mapping), ("param_groups", (list, tuple))):
        if not isinstance(loaded.get(key), kind):
            raise StateError(f"the checkpoint must have {key!r}. Pass what state_dict() gave, all of it.")
    for group in loaded["param_groups"]:
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), (list, tuple)):
            raise StateError(f"a group of the checkpoint lacks its 'params': {group!r}.")
        for name in MOVED:
            if isinstance(rate := group.get(name), Tensor) and rate.is_meta:
                raise StateError(f"`{name}` of the checkpoint is on the meta device and has no value. Load its values.")


def _check_rates(optimizer: Any, group: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raise if the rates to take over are invalid, or turn a rate into the relative step or back."""
    there, here = saved.get("relative_step"), group.get("relative_step")
    if "lr" in saved and (there != here or saved["lr"] is None):
        raise StateError(
            f"the checkpoint was written with lr={saved['lr']}, relative_step={there!r}, and this optimizer has "
            f"lr={group['lr']}, relative_step={here!r}: lr means something else. {WAY_OUT}"
        )
    try:
        stepper_of(optimizer).settings_of(
            {**group, **{name: saved[name] for name in MOVED if name in saved and name in group}}
        )
    except HyperparameterError as problem:
        raise StateError(f"the checkpoint cannot be right: {problem}") from None


def _convert_momentum(name: str, state: dict[str, Any], saved: Mapping[str, Any], h: Any) -> None:
    """Convert LARS's momentum to this optimizer's form: with lr in it, or without."""
    buffer, within = state.get("momentum_buffer"), getattr(h, CONVERTED, False)
    if buffer is not None and saved.get(CONVERTED, within) != within:
        lr = _state.checked_lr(name, saved.get("lr", 0), within)
        named_state(state).multiply("momentum_buffer", lr, inverse=not within)


def _own(optimizer: Any, taken: Taken) -> None:
    """Give the optimizer its own tensors, in the dtype they were saved in.

    torch casts them to the parameter's dtype, which would round float32 moments of bfloat16 parameters. If it need not
    cast, it keeps the checkpoint's tensors: the next step would write to them, and to both of two states that were
    saved as one.
    """
    params = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for key, p in zip(chain.from_iterable(taken.keys), params, strict=True):
        for name, value in taken.state.get(key, {}).items():
            device = "cpu" if stepper_of(optimizer).setup.offload else optimizer.state[p][name].device
            optimizer.state[p][name] = value.detach().to(device, copy=True)
    for number, group in enumerate(optimizer.param_groups):
        want = stepper_of(optimizer).groups.wanted(group)
        h = stepper_of(optimizer).settings_of(group)
        for p, name in stepper_of(optimizer).members.named(number):
            if p in optimizer.state:
                plan = stepper_of(optimizer).planner.plan_for(p, group, h, name)
                # Not the weights: the model's own may be loaded after these.
                stepped = stepper_of(optimizer).in_place_of(p)
                storing(plan, stepped, want).put_state_in_form(stepped, optimizer.state[p])


def _differing(optimizer: Any, sources: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    differing = {}
    for group, saved in zip(optimizer.param_groups, sources, strict=True):
        for name in stepper_of(optimizer).groups.known(group):
            converted = name == CONVERTED and "momentum" in group
            if name in (*MOVED, *AS_GIVEN) or name not in saved or converted:
                continue
            if not same(in_words(saved[name]), in_words(group[name])):
                differing[name] = in_words(saved[name])
    if differing:
        yield f"the checkpoint was written with other options, which do not replace those given here: {differing}"


def _regrouped(sources: Sequence[Mapping[str, Any]], regrouped: bool) -> Iterator[str]:
    if regrouped or 0 < sum("lr" in saved for saved in sources) < len(sources):
        seen = {f"group {i}": {name: saved[name] for name in MOVED if name in saved} for i, saved in enumerate(sources)}
        yield f"the checkpoint's groups are not these. States go by name, and rates come from there as follows: {seen}"
