"""The writer of a checkpoint, recognized by its groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from layerwise.errors import StateError
from layerwise.hyper import Hyper
from layerwise.registry import BY_LOWER, ENTRIES
from layerwise.torch.checkpoints._matching import MOVED
from layerwise.torch.checkpoints.foreign import CODECS
from layerwise.torch.checkpoints.foreign._codec import Codec
from layerwise.torch.checkpoints.foreign._moments import ADAM
from layerwise.torch.step._kinds import RULE

OURS = {"master_weights", "max_grad_norm_per_tensor"}  # a group of ours has one of these, and no other's has
# Options that change what a state means: `convert` says them, because a warning is due where ours differ.
MEANING = ("maximize", "grad_averaging", "lr_in_momentum", "lr_cap", "relative_step")
# What a checkpoint that was converted or made by hand may say of a group.
PLAIN = {*MOVED, *MEANING, "params", "param_names", "initial_lr", RULE}
# Without the trust ratio these take the steps of another optimizer.
PLAINLY = {"Lamb": "AdamW", "Lars": "SGD"}
KNOWN = frozenset().union(*(one.has | one.may for one in CODECS.values()), OURS) - {"initial_lr"}
PYTORCH_OPTIMIZER = {"foreach", "step"}  # its groups have both


def check_source(source: str, saved: Mapping[str, Any]) -> None:
    """Raise if a group of a checkpoint has not the keys that an optimizer gives its groups."""
    for number, group in enumerate(saved["param_groups"]):
        lacking, others = _odd(CODECS[source], group)
        if lacking or others:
            parts = (("lacks", lacking), ("has", others))
            told = " and ".join(f"{verb} {', '.join(map(repr, keys))}" for verb, keys in parts if keys)
            raise StateError(
                f"group {number} of the checkpoint is not as {source} saves it: it {told}. "
                f"{_likely(group, [] if lacking else others)}"
            )


def _odd(codec: Codec, group: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the keys that a group lacks, and those by which it is another's."""
    return sorted(codec.has - group.keys()), sorted((group.keys() & KNOWN) - codec.has - codec.may)


def _source_of(group: Mapping[str, Any]) -> str | None:
    """Return the source whose keys fit a group best, or None if none do; the four of Adam alone tell nothing."""
    fit = {
        source: len(group.keys() & (one.has | one.may)) for source, one in CODECS.items() if not any(_odd(one, group))
    }
    best = max(fit, key=fit.__getitem__, default=None)
    return None if best is None or fit[best] <= len(ADAM) else best


def _likely(group: Mapping[str, Any], added: Sequence[str]) -> str:
    """Return whose a group may be; without what was perhaps added to it, it would be as its source saves it."""
    if OURS & group.keys():
        return "It looks like that of an optimizer of layerwise, which loads it without conversion."
    if (source := _source_of(group)) is not None:
        return f'It looks like that of {source}: pass "{source}".'
    named = "one of pytorch_optimizer, which" if group.keys() >= PYTORCH_OPTIMIZER else "an optimizer that"
    yours = f" If your program added {', '.join(map(repr, added))}, remove that from the group." if added else ""
    return f"It looks like that of {named} no converter reads.{yours}"


def same_rule(theirs: str | None, ours: str | None, options: Mapping[str, Any]) -> bool:
    """Return True if ours with these options takes the steps of their rule, as far as is known."""
    plain = PLAINLY.get(ours or "") if options.get("adapt") is False and not options.get("keep_norm") else None
    return theirs is None or ours is None or theirs in (ours, plain)


def check(ours: Iterable[type[Hyper]], saved: Mapping[str, Any]) -> None:
    """Raise if none of these optimizers wrote a checkpoint, so that its names mean something else."""
    options = list(ours)
    names = [h.optimizer for h in options]
    for group in saved["param_groups"]:
        if OURS & group.keys():
            name = written_by(group)
            if name not in (None, *names):
                raise StateError(f"the checkpoint was written by {name}, and this is {names[0]}. Load it in {name}.")
        elif unknown := group.keys() - PLAIN:
            known = {spec.name for h in options for spec in fields(h)}
            odd = unknown - known - {"capturable", "differentiable", "fused"}
            keys = ", ".join(sorted(map(repr, odd or unknown)))
            raise StateError(
                f"the checkpoint was not written by layerwise's {_of(names)}: its groups have {keys} and lack our "
                f"options. {_way_out(names, group)}"
            )


def check_group(number: int, h: type[Hyper], saved: Sequence[Mapping[str, Any]]) -> None:
    """Raise if parameters of a group were stepped by another rule when they were saved."""
    for group in saved:
        if OURS & group.keys() and (name := written_by(group)) not in (None, h.optimizer):
            raise StateError(
                f"the parameters of group {number} were stepped by {name} in the checkpoint, and here they are by "
                f"{h.optimizer}. Give them the rule that they were saved with."
            )


def _of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else "Mixed"


def written_by(group: Mapping[str, Any]) -> str | None:
    """Return the optimizer that a group names or whose options it has, or None if that could be several."""
    if isinstance(rule := group.get(RULE), str):
        return BY_LOWER.get(rule.lower(), rule)
    options = {name: {spec.name for spec in fields(entry.hyper)} for name, entry in ENTRIES.items()}
    # A checkpoint of an older version may lack options, and groups have more keys than options.
    fit = {name: len(own & group.keys()) - len(own - group.keys()) for name, own in options.items()}
    best = [name for name, score in fit.items() if score == max(fit.values())]
    return best[0] if len(best) == 1 else None


def _way_out(ours: Sequence[str], group: Mapping[str, Any]) -> str:
    if (source := _source_of(group)) is None:
        return (
            "No converter reads such groups; layerwise.torch.convert lists those that there are. If your program added "
            "keys, remove them from the group."
        )
    rule = CODECS[source].rule
    names = [rule, *(name for name, plain in PLAINLY.items() if plain == rule)]
    if not {*names} & {*ours}:
        return f"It looks like that of {source}, from which {' or '.join(names)} can go on, but not {_of(ours)}."
    return f'Load layerwise.torch.convert(state_dict, "{source}") if it is that of {source}.'
