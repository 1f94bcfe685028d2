"""The writer of a checkpoint, recognized by its groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from layerwise.catalog.registry import ALL_OPTIONS, BY_LOWER, ENTRIES
from layerwise.errors import StateError
from layerwise.torch.checkpoints._matching import MOVED
from layerwise.torch.groups._members import Group
from layerwise.torch.groups._rules import RULE, SWITCHES

OURS = {"master_weights", "max_grad_norm_per_tensor"}  # our groups have one of these, and no other package's have
# Options that change the meaning of a state: `convert` includes them, because a difference needs a warning.
MEANING = ("maximize", "grad_averaging", "lr_in_momentum", "lr_cap", "relative_step")
# Keys that a group of a converted or hand-made checkpoint may have.
PLAIN = {*MOVED, *MEANING, "params", "param_names", "initial_lr", RULE}
CODECS: dict[str, Any] = {}  # those of foreign/, which enters them here: its modules import this one
NAMES = {*ALL_OPTIONS, *SWITCHES, "fused", "foreach"}  # options that ours may have in common with others
# Without the trust ratio these take the steps of another optimizer.
PLAINLY = {"Lamb": "AdamW", "Lars": "SGD"}


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
