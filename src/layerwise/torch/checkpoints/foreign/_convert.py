"""Conversion of checkpoints, from other optimizers to ours and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

from layerwise.core.slot import own_entries
from layerwise.errors import StateError, class_in_words, sentence, shown, warn
from layerwise.options.misspellings import did_you_mean, nearest
from layerwise.torch.arrays._library import named_state
from layerwise.torch.checkpoints import _groups, _matching
from layerwise.torch.checkpoints._loading import momentum_lr
from layerwise.torch.checkpoints._saving import restored
from layerwise.torch.checkpoints.foreign import CODECS
from layerwise.torch.checkpoints.foreign._codec import Codec, TargetParameter
from layerwise.torch.checkpoints.foreign._moments import MomentumCodec
from layerwise.torch.groups._members import Group, State
from layerwise.torch.groups._rules import RULE

if TYPE_CHECKING:
    from torch.optim.optimizer import StateDict

MALFORMED = (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError)  # of what is no state of theirs
ALIKE = ("exp_avg", "exp_avg_sq", "momentum_buffer")  # as large as the parameter, if there are any


def convert(state_dict: StateDict, source: str, *, lr_in_momentum: bool | None = None) -> StateDict:
    """Return another optimizer's checkpoint as a state_dict for the optimizer of its kind in `layerwise.torch`.

    Give options when you create the optimizer, for instance by a preset. Of the groups the result has only the rates
    that schedulers move, the options on which the meaning of the state depends, and the rule. An optimizer with another
    rule, such as LAMB for AdamW's state, keeps its own rates in all groups, and warns if they differ.

    Args:
        state_dict: The other optimizer's state_dict().
        source: The name of the other optimizer. The error for an unknown one lists all names.
        lr_in_momentum: The form of LARS's momentum in the result, with lr in it or not; None keeps that of the source.
            The optimizer that loads it converts it to its own.
    """
    codec = _codec(source, "from")
    if lr_in_momentum not in (None, False, True):
        way_out = "With None, weights keep their form."
        raise StateError(sentence("lr_in_momentum", "True, False or None", lr_in_momentum, way_out))
    if lr_in_momentum is not None and not isinstance(codec, MomentumCodec):
        raise StateError(
            f"lr_in_momentum applies to a momentum of gradients, which {source} does not have. Leave it out."
        )
    _check_mapping(state_dict, "convert(state_dict, source)")
    with _refused(f"this is not a checkpoint of {source}: {{}}. Pass all of its state_dict()."):
        _check_groups(source, state_dict)
        for doubt in dict.fromkeys(codec.checkpoint_warnings(state_dict)):
            warn(doubt)
        return _read(state_dict, codec, bool(lr_in_momentum))


def convert_back(state_dict: StateDict, optimizer: object, target: str) -> StateDict:
    """Return a checkpoint of `layerwise.torch` as a state_dict that another optimizer loads.

    That optimizer has the same parameters, in the same groups or with names. Its options stay unchanged, except those
    that schedulers move. If its rule differs from ours, these stay unchanged too, and a warning lists both. Master
    weights are not included.

    Args:
        state_dict: The state_dict() of our optimizer.
        optimizer: The other optimizer.
        target: Its name. The error for an unknown one lists all names.
    """
    codec = _codec(target, "to")
    _check_mapping(state_dict, "convert_back(state_dict, optimizer, target)")
    if not _is_named(optimizer, target):
        raise StateError(
            f"`optimizer` must be {target}, but is {class_in_words(optimizer)}. "
            "Pass the optimizer that continues the run."
        )
    way_out = "Pass the state_dict() of the matching layerwise optimizer."
    with _refused(f"{target} cannot continue from this state: {{}}. {way_out}"):
        made, doubts = _written(state_dict, optimizer, codec, target)
    for doubt in doubts:
        warn(doubt)
    return made


def _check_mapping(state_dict: object, call: str) -> None:
    if not isinstance(state_dict, Mapping):
        way_out = "Pass its state_dict()." if hasattr(state_dict, "state_dict") else "Pass a state_dict()."
        raise StateError(sentence("state_dict", "a dict", state_dict, f"{way_out} The order is {call}."))


def _codec(name: object, way: str) -> Codec:
    if isinstance(name, str) and name in CODECS:
        return CODECS[name]
    hint = did_you_mean(nearest(name, CODECS))
    names = ", ".join(sorted(CODECS))
    raise StateError(f"cannot convert {way} {shown(name)}.{hint and f' {hint}'} Pass one of {names}.")


def _is_named(optimizer: object, name: str) -> bool:
    """Return True if an optimizer, or one of its base classes, is among those that a name stands for.

    A package may have several of one name: with decoupled decay, with 8-bit state, or with state in host memory.
    """
    package, _, kind = name.partition(".")
    names = re.compile(rf"(Paged)?{kind}W?(\d+bit)?")
    return any(
        one.__module__.partition(".")[0] == package and names.fullmatch(one.__name__) for one in type(optimizer).__mro__
    )


@contextmanager
def _refused(message: str) -> Iterator[None]:
    """Raise with this message and the problem if a checkpoint is not as its codec expects."""
    try:
        yield
    except StateError:
        raise
    except MALFORMED as problem:
        what = f"{problem.args[0]!r} is missing" if isinstance(problem, KeyError) else problem
        raise StateError(message.format(what)) from None


# ---- theirs to ours


def _check_groups(source: str, saved: Group) -> None:
    for number, group in enumerate(saved["param_groups"]):
        if _groups.OURS & group.keys():
            raise StateError(
                f"group {number} of the checkpoint was saved by layerwise and needs no conversion. Load it with "
                "load_state_dict()."
            )
        if lacking := CODECS[source].has - group.keys():
            keys = ", ".join(sorted(map(repr, lacking)))
            raise StateError(
                f"group {number} of the checkpoint is not as {source} saves it: it has no {keys}. Pass the name of "
                "the optimizer that saved it. State saved by layerwise needs no conversion."
            )


def _read(state_dict: StateDict, codec: Codec, lr_in_momentum: bool) -> StateDict:
    state: dict[object, State] = {}
    groups = []
    within = {"lr_in_momentum": True} if lr_in_momentum else {}
    for group in state_dict["param_groups"]:
        kept = {key: group[key] for key in ("params", "param_names") if key in group}
        groups.append({**kept, **codec.read_options(group), **within, RULE: codec.rule})
        for key in group["params"]:
            if found := state_dict["state"].get(key):
                made = codec.read(found, group)
                _check_numbers(made)
                if within and made:  # exact if lr was constant
                    made["momentum_buffer"] = made["momentum_buffer"] * momentum_lr("the checkpoint", group["lr"], True)
                state[key] = {k: v.clone() if isinstance(v, Tensor) else v for k, v in made.items()}
    beside = _matching.entries_beside_params(state_dict)
    return {"state": {**{key: one for key, one in state.items() if one}, **beside}, "param_groups": groups}


def _check_numbers(state: State) -> None:
    """Raise if state has no count, or is in codes, whose scales would be lost."""
    if state and state["step"] is None:
        raise KeyError("step")
    for key, x in state.items():
        if key != "step" and not x.is_floating_point():
            raise StateError(
                f"{key!r} must have a floating-point dtype, but has {x.dtype}. Pass the name of the optimizer that "
                "saved it. State saved by layerwise needs no conversion."
            )


# ---- ours to theirs


def _written(state_dict: StateDict, optimizer: Any, codec: Codec, target: str) -> tuple[StateDict, Iterable[str]]:
    """Return the checkpoint and the warnings."""
    kept: dict[str, None] = {}
    doubts: dict[str, None] = {}
    template = optimizer.state_dict()["param_groups"]
    found = _matching.matched_params(template, state_dict)
    firsts: list[Group] = [members[0][0] if members else {} for members in found]
    same = all(_groups.same_rule(codec.rule, _groups.written_by(ours), ours) for ours in firsts if ours)
    states: dict[object, State] = {}
    groups = []
    for number, (group, members, first) in enumerate(zip(template, found, firsts, strict=True)):
        steps = set()
        for i, (key, (ours, old)) in enumerate(zip(group["params"], members, strict=True)):
            if state := state_dict["state"].get(old):
                place = TargetParameter(optimizer, number, i, optimizer.param_groups[number]["params"][i], ours)
                numbers = _in_numbers(state, place.p)
                steps.add(numbers["step"])
                states[key] = codec.write(numbers, place)
        rates = codec.write_options(first, group) if first else {}
        if not same:
            kept |= dict.fromkeys(_matching.differing_rates(group, rates))
            rates = {}
        elif first and (doubt := codec.group_warning(group, first)):
            doubts[doubt] = None
        groups.append({**group, **rates, **(_counted(steps, codec) if codec.in_group else {})})
    if kept:
        doubts[
            (
                f"{target} has another rule, so it keeps its own rates: {', '.join(kept)}. To change them, set them "
                "in its `param_groups`."
            )
        ] = None
    return {"state": states, "param_groups": groups}, doubts


def _in_numbers(state: State, p: Tensor) -> State:
    """Return a parameter's state with numbers for codes, in tensors of its own."""
    numbers = named_state(restored(own_entries(state), p.shape)).all_in_floating_point()
    found: State = {key: int(x) if key == "step" else x.clone() for key, x in numbers.items()}
    for key in ALIKE:
        if key in found and found[key].shape != p.shape:
            raise StateError(
                f"{key!r} must have the shape {tuple(p.shape)} of its parameter, but has {tuple(found[key].shape)}. "
                "It belongs to another model, or to an optimizer whose state the target cannot hold."
            )
    return found


def _counted(steps: set[int], codec: Codec) -> State:
    """Return the step count of a group's parameters in their form."""
    if len(steps) > 1:
        raise StateError(
            f"parameters of a group have taken {sorted(steps)} steps, but the target keeps one count for all of them."
        )
    return codec.counted(steps.pop()) if steps else {}
