"""The writer of a checkpoint, recognized by its groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from layerwise.errors import StateError
from layerwise.hyper import Hyper
from layerwise.registry import ENTRIES
from layerwise.torch.checkpoints._matching import MOVED
from layerwise.torch.step._kinds import RULE

OURS = {"master_weights", "max_grad_norm_per_tensor"}  # a group of ours has one of these, and no other's has
# Options that change what a state means: `convert` says them, because a warning is due where ours differ.
MEANING = ("maximize", "grad_averaging", "lr_in_momentum", "lr_cap", "relative_step")
# What a checkpoint that was converted or made by hand may say of a group.
PLAIN = {*MOVED, *MEANING, "params", "param_names", "initial_lr"}
# What a group of each source has, and which of ours go on from it; the most telling first.
MARKS: dict[str, tuple[set[str], tuple[str, ...]]] = {
    "timm.Lars": ({"trust_coeff", "momentum"}, ("Lars",)),
    "timm.Lamb": ({"always_adapt", "betas"}, ("Lamb",)),
    "apex.FusedLAMB": ({"grad_averaging", "bias_correction", "max_grad_norm", "betas"}, ("Lamb",)),
    "bitsandbytes.Adam": ({"t_alpha", "alpha", "betas"}, ("AdamW", "Lamb")),
    "flashoptim.FlashAdamW": ({"master_bytewidth", "betas"}, ("AdamW", "Lamb")),
    "flashoptim.FlashSGD": ({"master_bytewidth", "momentum"}, ("SGD", "Lars")),
    "timm.AdafactorBigVision": ({"beta2_cap", "clipping_threshold"}, ("Adafactor",)),
    "timm.Adafactor": ({"eps_scale", "min_dim_size_to_factor"}, ("Adafactor",)),
    "torch.Adam": ({"amsgrad", "betas"}, ("AdamW", "Lamb")),
    "torch.SGD": ({"dampening", "nesterov", "momentum"}, ("SGD", "Lars")),
    "torch.Adafactor": ({"beta2_decay", "d"}, ("Adafactor",)),
    "transformers.Adafactor": ({"decay_rate", "warmup_init"}, ("Adafactor",)),
}


def check(ours: Iterable[type[Hyper]], groups: Sequence[Mapping[str, Any]]) -> None:
    """Raise if none of these optimizers wrote a checkpoint, so that its names mean something else."""
    options = list(ours)
    names = [h.optimizer for h in options]
    for group in groups:
        if OURS & group.keys():
            name = _written_by(group)
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
        if OURS & group.keys() and (name := _written_by(group)) not in (None, h.optimizer):
            raise StateError(
                f"the parameters of group {number} were stepped by {name} in the checkpoint, and here they are by "
                f"{h.optimizer}. Give them the rule that they were saved with."
            )


def _of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else "Mixed"


def _written_by(group: Mapping[str, Any]) -> str | None:
    """Return the optimizer that a group names or whose options it has, or None if that could be several."""
    if isinstance(rule := group.get(RULE), str):
        return next((name for name in ENTRIES if name.lower() == rule.lower()), rule)
    options = {name: {spec.name for spec in fields(entry.hyper)} for name, entry in ENTRIES.items()}
    # A checkpoint of an older version may lack options, and groups have more keys than options.
    fit = {name: len(own & group.keys()) - len(own - group.keys()) for name, own in options.items()}
    best = [name for name, score in fit.items() if score == max(fit.values())]
    return best[0] if len(best) == 1 else None


def _way_out(ours: Sequence[str], group: Mapping[str, Any]) -> str:
    found = next(((source, names) for source, (marks, names) in MARKS.items() if marks <= group.keys()), None)
    if found is None:
        return "No converter reads it; layerwise.torch.convert lists those that there are."
    source, names = found
    if not {*names} & {*ours}:
        return f"It looks like that of {source}, from which {' or '.join(names)} can go on, but not {_of(ours)}."
    return f'Load layerwise.torch.convert(state_dict, "{source}") if it is that of {source}.'
