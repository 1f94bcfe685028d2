"""Who wrote a checkpoint, as its groups tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from layerwise.errors import StateError
from layerwise.hyper import Adafactor, Lamb, Lars, Settings
from layerwise.torch._matching import MOVED

# An option of all our optimizers that no other package has, and one of each that the other two lack.
OURS = "max_grad_norm_per_tensor"
OF_ONE: dict[str, type[Settings]] = {"betas": Lamb, "trust_coefficient": Lars, "beta2_decay": Adafactor}
# Options that change what a state means: `convert` says them, because a warning is due where ours differ.
MEANING = ("maximize", "grad_averaging", "lr_in_momentum", "lr_cap", "relative_step")
# What a checkpoint that was converted or made by hand may say of a group.
PLAIN = {*MOVED, *MEANING, "params", "param_names", "initial_lr"}
# What a group of each source has, and which of ours goes on from it; the most telling first.
MARKS: dict[str, tuple[set[str], type[Settings]]] = {
    "timm.Lars": ({"trust_coeff", "momentum"}, Lars),
    "timm.Lamb": ({"always_adapt", "betas"}, Lamb),
    "apex.FusedLAMB": ({"grad_averaging", "bias_correction", "max_grad_norm", "betas"}, Lamb),
    "torch.Adam": ({"amsgrad", "betas"}, Lamb),
    "torch.SGD": ({"dampening", "nesterov", "momentum"}, Lars),
    "torch.Adafactor": ({"beta2_decay", "d"}, Adafactor),
    "transformers.Adafactor": ({"decay_rate", "warmup_init"}, Adafactor),
}


def check(h: type[Settings], groups: Sequence[Mapping[str, Any]]) -> None:
    """Raise if a checkpoint was written by an optimizer that means something else by the same names."""
    for group in groups:
        if OURS in group:
            written = [one for mark, one in OF_ONE.items() if mark in group]
            if len(written) == 1 and written[0] is not h:
                name = written[0].optimizer
                raise StateError(f"the checkpoint was written by {name}, and this is {h.optimizer}. Load it in {name}.")
        elif unknown := group.keys() - PLAIN:
            odd = unknown - {spec.name for spec in fields(h)} - {"capturable", "differentiable", "fused"}
            said = ", ".join(sorted(map(repr, odd or unknown)))
            raise StateError(
                f"the checkpoint was not written by layerwise's {h.optimizer}: its groups have {said} and lack our "
                f"options. {_way_out(h, group)}"
            )


def _way_out(h: type[Settings], group: Mapping[str, Any]) -> str:
    found = next(((source, kind) for source, (marks, kind) in MARKS.items() if marks <= group.keys()), None)
    if found is None:
        return "No converter reads it; layerwise.torch.convert lists those that there are."
    source, kind = found
    if kind is not h:
        return f"It looks like that of {source}, from which {kind.optimizer} can go on, but not {h.optimizer}."
    return f'Load layerwise.torch.convert(state_dict, "{source}") if it is that of {source}.'
