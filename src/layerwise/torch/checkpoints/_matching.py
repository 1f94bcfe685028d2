"""The matching of a checkpoint's parameters and groups with an optimizer's, and the rates that each group restores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from layerwise.core.slot import own_entries
from layerwise.errors import StateError
from layerwise.errors import shown as described
from layerwise.options.by_name import lacks_and_has
from layerwise.options.checks import number
from layerwise.options.settings import as_plain_value
from layerwise.torch.groups._members import FORMS, Group
from layerwise.torch.step._first_steps import OF_SCHEDULES

if TYPE_CHECKING:
    from torch.optim.optimizer import StateDict


# Options that schedulers change during a run, and that a resumed run must restore.
MOVED = ("lr", "weight_decay", "betas", "momentum")
RATE = number(0)


def check_form(loaded: object) -> None:
    """Raise unless this has the form of a state_dict()."""
    if not isinstance(loaded, Mapping):
        way_out = "Pass its state_dict()." if hasattr(loaded, "state_dict") else "Pass what state_dict() returned."
        raise StateError(f"a checkpoint must be a dict, but is {described(loaded)}. {way_out}")
    parts = {key for key, one in loaded.items() if isinstance(one, Mapping) and {"state", "param_groups"} <= one.keys()}
    if parts and "param_groups" not in loaded:
        key = min(map(repr, parts))
        raise StateError(
            f"the value passed is not a state_dict, but has the optimizer's under {key}. Pass checkpoint[{key}]."
        )
    if loaded and not loaded.keys() & {"state", "param_groups"}:
        model = " It looks like the model's." * any(isinstance(x, Tensor) for x in loaded.values())
        raise StateError(
            f"this is not an optimizer's checkpoint: it has {names_in_words([*map(str, loaded)], 1)}, not 'state' and "
            f"'param_groups'.{model} Pass what optimizer.state_dict() returned."
        )
    for key, kind in (("state", Mapping), ("param_groups", (list, tuple))):
        if not isinstance(loaded.get(key), kind):
            raise StateError(f"the checkpoint has no {key!r}. Pass all that state_dict() returned.")
    for group in loaded["param_groups"]:
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), (list, tuple)):
            raise StateError(f"a checkpoint group has no 'params': {group!r}.")
        _check_rates(group)


def _check_rates(group: Group) -> None:
    for name in MOVED:
        if isinstance(rate := group.get(name), Tensor) and rate.is_meta:
            raise StateError(f"`{name}` of the checkpoint is on the meta device and has no value. Load its values.")
    for name in OF_SCHEDULES:
        if (rate := group.get(name)) is not None and not RATE.takes(rate):
            raise StateError(
                f"`{name}` of the checkpoint must be {RATE.allowed}, but is {described(rate)}. Leave it out."
            )


def matched_params(ours: Sequence[Group], loaded: StateDict) -> list[list[tuple[Group, int]]]:
    """Return for each of our groups the (saved group, key) of its parameters.

    Names decide if both sides have them. Otherwise parameters are matched by position.
    """
    saved = loaded["param_groups"]
    places = [(group, key) for group in saved for key in group["params"]]
    _check_keys([key for _, key in places])
    entries_beside_params(loaded)
    theirs = _names_of(saved)
    sizes = [len(group["params"]) for group in ours]
    if theirs is None or not all(group.get("param_names") for group in ours if group["params"]):
        found = [len(group["params"]) for group in saved]
        if found != sizes:
            raise StateError(
                f"the checkpoint has groups of {found} parameters, but this optimizer has groups of {sizes}. Create "
                "the same groups, or create both optimizers from named parameters, which are matched by name."
            )
        order: Sequence[int] = range(len(places))
    else:
        order = _order([name for group in ours for name in group.get("param_names", ())], theirs)
    each = iter(order)
    return [[places[next(each)] for _ in range(size)] for size in sizes]


def _check_keys(keys: Sequence[object]) -> None:
    odd = [key for key in keys if not isinstance(key, (int, str))]
    if odd or len(set(keys)) != len(keys):
        found = f"{odd[0]!r} is neither" if odd else "one appears twice"
        raise StateError(
            f"'params' of the checkpoint's groups must be numbers or names without duplicates, but {found}. Pass "
            "what state_dict() returned."
        )


def entries_beside_params(saved: Group) -> dict[Any, Any]:
    """Return other programs' entries besides the state of parameters; raise for state that matches no parameter.

    State of parameters is keyed by numbers or by names, like the groups. The groups tell names from other programs'
    keys.
    """
    keys = {key for group in saved["param_groups"] for key in group["params"]}
    found = {key: one for key, one in saved["state"].items() if key not in keys}
    named = any(isinstance(key, str) for key in keys)
    odd = [key for key, one in found.items() if isinstance(key, int) or (named and _is_state(one))]
    if odd:
        raise StateError(f"the checkpoint has state for {sorted(map(str, odd))}, which match no parameter.")
    return found


def _is_state(one: object) -> bool:
    return isinstance(one, Mapping) and bool(own_entries(one))


def _names_of(saved: Sequence[Group]) -> list[list[str]] | None:
    """Return the checkpoint's names, the most reliable first.

    torch.distributed.checkpoint orders keys that are names as in the loading optimizer, and leaves 'param_names' as in
    the saving one.
    """
    keys = list(chain.from_iterable(group["params"] for group in saved))
    if keys and all(isinstance(key, str) for key in keys):
        each = (group.get("param_names") for group in saved)
        return [keys, list(chain.from_iterable(names for names in each if isinstance(names, (list, tuple))))]
    named = ["param_names" in group for group in saved if group["params"] or group.get("param_names")]
    if any(named) and not all(named):
        raise StateError("the checkpoint names the parameters of some groups only. Name all or none.")
    return [list(chain.from_iterable(map(_names_in, saved)))] if any(named) else None


def _names_in(group: Group) -> list[str]:
    names = group.get("param_names", [])
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise StateError(f"'param_names' of a checkpoint group must be a list of strings, but is {names!r}.")
    if len(names) != len(group["params"]):
        raise StateError(
            f"'param_names' of a checkpoint group must name all of its {len(group['params'])} parameters, but has "
            f"{len(names)} names: {names_in_words(names)}. Pass what state_dict() returned."
        )
    return list(names)


def _order(ours: list[str], theirs: Sequence[list[str]]) -> Sequence[int]:
    if (order := _same_names(ours, theirs[0])) is not None:
        return order
    if theirs[1:] == [ours] and len(theirs[0]) == len(
        ours
    ):  # names that the caller made up, although the keys are the model's
        return range(len(ours))
    raise StateError(_contradiction(ours, theirs[0]))


def _same_names(ours: list[str], theirs: list[str]) -> Sequence[int] | None:
    if len(ours) != len(theirs):
        return None
    for form in FORMS:
        a, b = _without_prefix([form(name) for name in ours], [form(name) for name in theirs])
        if a == b:
            return range(len(a))
        places = {name: i for i, name in enumerate(b)}
        if len(places) == len(b) and places.keys() == set(a):
            return [places[name] for name in a]
    return None


def _without_prefix(a: list[str], b: list[str]) -> tuple[list[str], list[str]]:
    """Return both without the module that contains all names of one side, unless it also contains the other side's."""
    more = (sum(map(len, b)) - sum(map(len, a))) // max(1, len(a))
    if more < 0:
        return _without_prefix(b, a)[::-1]
    prefix = b[0][:more] if b else ""
    if prefix.endswith(".") and all(name.startswith(prefix) for name in b):
        b = [name[more:] for name in b]
    return a, b


def _contradiction(ours: list[str], theirs: list[str]) -> str:
    plain = FORMS[1]
    a, b = {plain(name): name for name in ours}, {plain(name): name for name in theirs}
    lacking, besides = [a[n] for n in a.keys() - b.keys()], [b[n] for n in b.keys() - a.keys()]
    if not lacking and not besides:
        return (
            f"the checkpoint has the names {names_in_words(theirs)}, but this optimizer has {names_in_words(ours)}. "
            "Names that appear twice must be in the same order. Pass the parameters in the order in which they were "
            "saved."
        )
    found = lacks_and_has("the checkpoint", lacking, besides, "this optimizer")
    return (
        f"{found}. Create the optimizer with the parameters that were saved, or rename them in the checkpoint's "
        "'param_names'."
    )


def names_in_words(names: Sequence[str], most: int = 5) -> str:
    """Return the first of some names in words, and the number of others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more if names else "nothing"


def source_of(number: int, members: Sequence[tuple[Group, object]], saved: Sequence[Group]) -> Group:
    """Return the saved group that ours continues, with the rates on which all of its parameters' groups agree.

    A group without parameters continues the one at its index, if that has none either.
    """
    sources = _distinct([group for group, _ in members])
    sources = sources or [one for one in saved[number : number + 1] if not one["params"]]
    for other in sources[1:]:
        for name in (*MOVED, "initial_lr"):
            if not same(sources[0].get(name), other.get(name)):
                raise StateError(
                    f"the parameters of group {number} come from checkpoint groups with "
                    f"{name}={sources[0].get(name)!r} and {name}={other.get(name)!r}, so it is not clear which value "
                    "to use. Create the groups as they were saved, load, and then move parameters."
                )
    return sources[0] if sources else {}


def regrouped(found: Sequence[Sequence[tuple[Group, object]]]) -> bool:
    """Return True if the checkpoint divides parameters into other groups than ours."""
    cut = [id(group) for members in found for group in _distinct([one for one, _ in members])]
    return len(set(cut)) != len(cut) or any(len(_distinct([one for one, _ in members])) > 1 for members in found)


def _distinct(groups: Sequence[Group]) -> list[Group]:
    return list({id(group): group for group in groups}.values())


def same(a: object, b: object) -> bool:
    """Return True if two options are equal, in whatever type a checkpoint has them."""
    a, b = (tuple(x) if isinstance(x, list) else x for x in (a, b))
    try:
        return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else bool(a == b)
    except (RuntimeError, TypeError, ValueError):
        return False


def differing_rates(ours: Group, theirs: Group) -> Iterator[str]:
    """Yield the rates of two groups that differ, in words."""
    for name in MOVED:
        if name in ours and name in theirs and not same(ours[name], theirs[name]):
            yield f"{name}={as_plain_value(ours[name])} (the checkpoint has {as_plain_value(theirs[name])})"
