"""The writer of a checkpoint, recognized by its groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from layerwise.errors import StateError
from layerwise.hyper import Hyper
from layerwise.registry import ENTRIES
from layerwise.rules.adafactor import Adafactor
from layerwise.rules.lamb import Lamb
from layerwise.rules.lars import Lars
from layerwise.torch.checkpoints._matching import MOVED

OURS = {"master_weights", "max_grad_norm_per_tensor"}  # a group of ours has one of these, and no other's has
# Options that change what a state means: `convert` says them, because a warning is due where ours differ.
MEANING = ("maximize", "grad_averaging", "lr_in_momentum", "lr_cap", "relative_step")
# What a checkpoint that was converted or made by hand may say of a group.
PLAIN = {*MOVED, *MEANING, "params", "param_names", "initial_lr"}
# What a group of each source has, and which of ours goes on from it; the most telling first.
MARKS: dict[str, tuple[set[str], type[Hyper]]] = {
    "timm.Lars": ({"trust_coeff", "momentum"}, Lars),
    "timm.Lamb": ({"always_adapt", "betas"}, Lamb),
    "apex.FusedLAMB": ({"grad_averaging", "bias_correction", "max_grad_norm", "betas"}, Lamb),
    "torch.Adam": ({"amsgrad", "betas"}, Lamb),
    "torch.SGD": ({"dampening", "nesterov", "momentum"}, Lars),
    "torch.Adafactor": ({"beta2_decay", "d"}, Adafactor),
    "transformers.Adafactor": ({"decay_rate", "warmup_init"}, Adafactor),
}


def check(h: type[Hyper], groups: Sequence[Mapping[str, Any]]) -> None:
    """Raise if a checkpoint was written by an optimizer that means something else by the same names."""
    for group in groups:
        if OURS & group.keys():
            name = _written_by(group)
            if name not in (None, h.optimizer):
                raise StateError(f"the checkpoint was written by {name}, and this is {h.optimizer}. Load it in {name}.")
        elif unknown := group.keys() - PLAIN:
            odd = unknown - {spec.name for spec in fields(h)} - {"capturable", "differentiable", "fused"}
            keys = ", ".join(sorted(map(repr, odd or unknown)))
            raise StateError(
                f"the checkpoint was not written by layerwise's {h.optimizer}: its groups have {keys} and lack our "
                f"options. {_way_out(h, group)}"
            )


def _written_by(group: Mapping[str, Any]) -> str | None:
    """Return the optimizer whose options a group has, or None if that could be several."""
    options = {name: {spec.name for spec in fields(entry.hyper)} for name, entry in ENTRIES.items()}
    # A checkpoint of an older version may lack options, and groups have more keys than options.
    fit = {name: len(own & group.keys()) - len(own - group.keys()) for name, own in options.items()}
    best = [name for name, score in fit.items() if score == max(fit.values())]
    return best[0] if len(best) == 1 else None


def _way_out(h: type[Hyper], group: Mapping[str, Any]) -> str:
    found = next(((source, kind) for source, (marks, kind) in MARKS.items() if marks <= group.keys()), None)
    if found is None:
        return "No converter reads it; layerwise.torch.convert lists those that there are."
    source, kind = found
    if kind is not h:
        return f"It looks like that of {source}, from which {kind.optimizer} can go on, but not {h.optimizer}."
    return f'Load layerwise.torch.convert(state_dict, "{source}") if it is that of {source}.'
