"""The groups of a checkpoint: who wrote them, and with which rates and options ours continue them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from typing import Any, NamedTuple

from torch import Tensor

from layerwise.catalog.registry import ALL_OPTIONS, BY_LOWER, ENTRIES
from layerwise.errors import ContradictionError, HyperparameterError, StateError
from layerwise.options.settings import as_plain_value
from layerwise.torch.checkpoints._matching import MOVED, differing_rates, same
from layerwise.torch.groups._members import Group, GroupDict
from layerwise.torch.groups._options import CheckedGroup, GroupOptions
from layerwise.torch.groups._rules import RATES, RULE, SWITCHES, naming_group
from layerwise.torch.step._plan import WAY_OUT
from layerwise.torch.step._stepper import Stepper

OURS = {"master_weights", "max_grad_norm_per_tensor"}  # our groups have one of these, and no other package's have
# Options that change the meaning of a state: `convert` includes them, because a difference needs a warning.
MEANING = ("maximize", "grad_averaging", "lr_in_momentum", "lr_cap", "relative_step")
# Keys that a group of a converted or hand-made checkpoint may have.
PLAIN = {*MOVED, *MEANING, "params", "param_names", "initial_lr", RULE}
CODECS: dict[str, Any] = {}  # those of foreign/, which enters them here: its modules import this one
NAMES = {*ALL_OPTIONS, *SWITCHES, "fused", "foreach"}  # options that ours may have in common with others
# Without the trust ratio these take the steps of another optimizer.
PLAINLY = {"Lamb": "AdamW", "Lars": "SGD"}
AS_GIVEN = ("state_dtype",)  # state is converted to the format requested here
GONE = ("reproducible",)  # an option that groups of earlier checkpoints may have
CONVERTED = "lr_in_momentum"  # LARS's momentum is converted to this optimizer's form


def same_rule(theirs: str | None, ours: str | None, options: Mapping[str, object]) -> bool:
    """Return True if our rule with these options takes the same steps as another rule, as far as is known."""
    plain = PLAINLY.get(ours or "") if options.get("adapt") is False and not options.get("keep_norm") else None
    return theirs is None or ours is None or theirs in (ours, plain)


def check_writer(saved: Group) -> None:
    """Raise if another package wrote a checkpoint, so that its names mean something else."""
    for group in saved["param_groups"]:
        if not OURS & group.keys() and (unknown := group.keys() - PLAIN):
            odd = unknown - NAMES
            keys = ", ".join(sorted(map(repr, odd or unknown)))
            raise StateError(
                f"the checkpoint was not written by layerwise: its groups have {keys} and lack layerwise's options. "
                f"{_to_convert(group)} If your program added keys, remove them from the group."
            )


def _to_convert(group: Group) -> str:
    """Return the way out for a group of another optimizer, whose name is guessed by its keys."""
    fit = [name for name, codec in CODECS.items() if codec.has <= group.keys() and not codec.group_warning(group)]
    if not fit:
        return "If another optimizer saved it, load layerwise.torch.convert(state_dict, source)."
    best = max(fit, key=lambda name: len(CODECS[name].has))
    return f"It looks like {best}'s: load layerwise.torch.convert(state_dict, {best!r})."


def check_group(number: int, rule: str, saved: Sequence[Group]) -> None:
    """Raise if parameters of a group were stepped by another rule when they were saved."""
    for group in {id(group): group for group in saved}.values():
        if OURS & group.keys() and (name := written_by(group)) not in (None, rule):
            raise StateError(
                f"the parameters of group {number} were saved by {name}, but are stepped by {rule} here. Load "
                f"them into {name}, or into a group of Mixed with that rule."
            )


def written_by(group: Group) -> str | None:
    """Return the optimizer that a group names or whose options it has, or None if that could be several."""
    if isinstance(rule := group.get(RULE), str):
        return BY_LOWER.get(rule.lower(), rule)
    options = {name: {spec.name for spec in fields(entry.hyper)} for name, entry in ENTRIES.items()}
    # A checkpoint of an older version may lack options, and groups have more keys than options.
    fit = {name: len(own & group.keys()) - len(own - group.keys()) for name, own in options.items()}
    best = [name for name, score in fit.items() if score == max(fit.values())]
    return best[0] if len(best) == 1 else None


# ---- with what they go on


class ContinuedGroup(NamedTuple):
    """A group, and the saved group that it continues."""

    ours: Group
    begun: Group  # as it was saved
    source: Group  # the same, with our rates if another rule steps it
    checked: CheckedGroup  # what follows from our options and the rates to take over


def continued(stepper: Stepper, ours: Sequence[Group], saved: Sequence[Group]) -> list[ContinuedGroup]:
    """Return our groups with the saved ones; raise if their rates do not fit."""
    begun = [_placed(*each) for each in zip(ours, saved, strict=True)]
    sources = _with_own_rates(stepper.groups, ours, begun)
    settings = [_settings(stepper, i, *each) for i, each in enumerate(zip(ours, sources, strict=True))]
    return list(map(ContinuedGroup, ours, begun, sources, settings))


def options(groups: GroupOptions, one: ContinuedGroup) -> GroupDict:
    """Return our group with the checkpoint's values of rates that schedulers move, and of keys that are not our
    options.
    """
    not_taken = {*groups.known(one.ours), *MEANING, *GONE, RULE, "params", "param_names"}
    others = {name: copied(name, x) for name, x in one.source.items() if name not in not_taken}
    return {**one.ours, **others, **_moved(one.ours, one.source)}


def copied(name: str, value: object) -> Any:
    """Return a copy of a value that is not a tensor."""
    try:
        return deepcopy(value)
    except Exception as problem:  # the object may raise anything
        raise StateError(
            f"{name!r} of the checkpoint cannot be copied ({type(problem).__name__}). Leave it out."
        ) from problem


def _moved(group: Group, saved: Group) -> GroupDict:
    taken = {name: saved[name] for name in MOVED if name in saved and name in group}
    return {name: tuple(x) if isinstance(x, list) else x for name, x in taken.items()}


def _placed(group: Group, saved: Group) -> GroupDict:
    """Return the saved group with its own rates: as tensors if a captured step needs them."""
    saved = _with_role(group, saved)
    rates = {name: saved[name] for name in RATES if isinstance(saved.get(name), Tensor)}
    device = group["params"][0].device if group["capturable"] and group["params"] else None
    return {**saved, **{name: rate.detach().to(device or rate.device, copy=True) for name, rate in rates.items()}}


def _with_role(group: Group, saved: Group) -> Group:
    """Return the saved group with the role of its lr; if that is open, None means a relative step."""
    if "lr" not in saved or "relative_step" not in group:
        return saved
    relative = saved["lr"] is None
    role = group["relative_step"] or "factor" if relative else saved.get("relative_step") or False
    if role == "cap" and group["relative_step"] == "factor":  # the saved lr means lr_cap here
        kept = {name: x for name, x in saved.items() if name not in ("lr", "initial_lr", "relative_step")}
        return {**kept, "lr_cap": saved["lr"]}
    lr = group["lr"] if relative and group["relative_step"] else saved["lr"]
    scaled = {"scale_parameter": relative} if saved.get("scale_parameter", False) is None else {}
    return {**saved, "lr": lr, "relative_step": role, **scaled}


def _with_own_rates(groups: GroupOptions, ours: Sequence[Group], begun: Sequence[Group]) -> Sequence[Group]:
    """Return the saved groups with our rates if another rule steps any of them: their rates then mean something else.

    A group without a ratio, like biases in LAMB, has AdamW's rule, but belongs with the other groups, not with the old
    run.
    """
    pairs = list(zip(ours, begun, strict=True))
    rules = [groups.rules.of(group).hyper.optimizer for group in ours]
    if all(same_rule(saved.get(RULE), rule, group) for (group, saved), rule in zip(pairs, rules, strict=True)):
        return begun
    each = ({**saved, **_moved(saved, group)} for group, saved in pairs)
    return [{name: x for name, x in saved.items() if name != "initial_lr"} for saved in each]


def _settings(stepper: Stepper, number: int, group: Group, saved: Group) -> CheckedGroup:
    """Return our settings with the rates to load; raise if these are invalid, or turn a rate into the relative step or
    back.
    """
    there, here = saved.get("relative_step"), group.get("relative_step")
    if "lr" in saved and (there != here or saved["lr"] is None):
        raise StateError(
            f"the checkpoint was written with lr={saved['lr']} and relative_step={there!r}, but this optimizer has "
            f"lr={group['lr']} and relative_step={here!r}, which give lr another meaning. {WAY_OUT}"
        )
    try:
        with naming_group(number):
            return stepper.settings_of({**group, **_moved(group, saved)})
    except ContradictionError as problem:
        raise StateError(f"the checkpoint's rates do not fit the options of this optimizer: {problem}") from None
    except HyperparameterError as problem:
        raise StateError(f"the checkpoint cannot be correct: {problem}") from None


def warnings(groups: GroupOptions, each: Sequence[ContinuedGroup], regrouped: bool) -> Iterator[str]:
    """Yield warnings about rates of another rule or of other groups, and about options that differ."""
    if any(one.source is not one.begun for one in each):
        if seen := dict.fromkeys(words for one in each for words in differing_rates(one.ours, one.begun)):
            rules = " and ".join({one.begun[RULE]: None for one in each if RULE in one.begun})
            yield (
                f"the checkpoint was stepped by {rules}, so this optimizer keeps its own rates: {', '.join(seen)}. "
                "To change them, set them in `param_groups`."
            )
    elif regrouped or len({"lr" in one.source for one in each if one.ours["params"]}) > 1:
        rates = {
            f"group {i}": {name: one.source[name] for name in MOVED if name in one.source} for i, one in enumerate(each)
        }
        yield (
            "the checkpoint has other groups than this optimizer. State was matched by name, and rates were taken "
            f"from the checkpoint as follows: {rates}"
        )
    if differing := {name: x for one in each for name, x in _differing(groups, one)}:
        yield (
            f"the checkpoint was written with other options; the options of this optimizer stay in effect: {differing}"
        )


def _differing(groups: GroupOptions, one: ContinuedGroup) -> Iterator[tuple[str, object]]:
    passed = {*MOVED, *AS_GIVEN, *([CONVERTED] if "momentum" in one.ours else [])}
    for name in [known for known in groups.known(one.ours) if known in one.source and known not in passed]:
        there, here = one.source[name], one.ours[name]
        if there is not here and not same(as_plain_value(there), as_plain_value(here)):
            yield name, as_plain_value(there)
