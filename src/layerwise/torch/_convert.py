"""Checkpoints of other optimizers in the form that ours load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from layerwise.errors import StateError
from layerwise.torch._loading import MOVED

State = dict[str, Any]
Convert = Callable[[State, Mapping[str, Any], bool], State]


def _adam_like(state: State, group: Mapping[str, Any], lr_in_momentum: bool) -> State:
    """apex and timm count steps in the group, not in the state."""
    if "max_exp_avg_sq" in state:
        raise StateError("the checkpoint is of amsgrad, whose maximum LAMB does not have. It cannot be converted.")
    return {"step": state.get("step", group.get("step")), **{k: state[k] for k in ("exp_avg", "exp_avg_sq")}}


def _sgd(state: State, group: Mapping[str, Any], lr_in_momentum: bool) -> State:
    """b = Σ μᵏ·r in SGD; with lr inside the momentum it is lr times that, as far as lr was constant."""
    buffer = state["momentum_buffer"]
    if buffer is None:
        return {}
    # SGD counts no steps; all that matters is that the first one is over.
    return {"step": 1, "momentum_buffer": buffer * group["lr"] if lr_in_momentum else buffer}


def _torch_adafactor(state: State, group: Mapping[str, Any], lr_in_momentum: bool) -> State:
    names = {"row_var": "exp_avg_sq_row", "col_var": "exp_avg_sq_col", "variance": "exp_avg_sq", "step": "step"}
    kept = {names[key]: value for key, value in state.items() if key in names and value is not None}
    return {"step": kept.pop("step"), **(kept if kept else {"exp_avg_sq": state["variance"]})}


def _transformers_adafactor(state: State, group: Mapping[str, Any], lr_in_momentum: bool) -> State:
    """Row means lack the last dimension there, and column means the last but one; RMS is measured anew."""
    kept: State = {"step": state["step"], **{k: state[k] for k in ("exp_avg", "exp_avg_sq") if k in state}}
    if "exp_avg_sq" not in state:
        kept["exp_avg_sq_row"] = state["exp_avg_sq_row"].unsqueeze(-1)
        kept["exp_avg_sq_col"] = state["exp_avg_sq_col"].unsqueeze(-2)
    return kept


SOURCES: dict[str, tuple[Convert, tuple[str, ...]]] = {
    "apex.FusedLAMB": (_adam_like, MOVED),
    "timm.Lamb": (_adam_like, MOVED),
    "torch.Adam": (_adam_like, MOVED),
    "timm.Lars": (_sgd, MOVED),
    "torch.SGD": (_sgd, MOVED),
    # Their lr is a bound or None, not a rate: ours stays as it was given.
    "torch.Adafactor": (_torch_adafactor, ("weight_decay",)),
    "transformers.Adafactor": (_transformers_adafactor, ("weight_decay",)),
}


def convert(state_dict: Mapping[str, Any], source: str, *, lr_in_momentum: bool = True) -> dict[str, Any]:
    """What `source` saved with state_dict(), as a state_dict that our optimizer of its kind loads.

    Options are ours to give when the optimizer is made, by a preset for instance; of the groups only what schedulers
    move is kept. `lr_in_momentum` says how the LARS that will load it keeps its momentum.
    """
    if source not in SOURCES:
        raise StateError(f"no checkpoint of {source!r} can be converted. Pass one of {', '.join(sorted(SOURCES))}.")
    one, moved = SOURCES[source]
    try:
        return _converted(state_dict, one, moved, lr_in_momentum)
    except (KeyError, TypeError, AttributeError) as problem:
        raise StateError(f"this is not what {source} saves: {problem!r}. Pass its state_dict(), all of it.") from None


def _converted(
    state_dict: Mapping[str, Any], one: Convert, moved: tuple[str, ...], lr_in_momentum: bool
) -> dict[str, Any]:
    state: dict[Any, State] = {}
    groups = []
    for group in state_dict["param_groups"]:
        groups.append({key: x for key, x in group.items() if key in (*moved, "params", "initial_lr", "param_names")})
        for key in group["params"]:
            if found := state_dict["state"].get(key):
                made = one(found, group, lr_in_momentum)
                state[key] = {k: v.clone() if isinstance(v, Tensor) else v for k, v in made.items()}
    return {"state": {key: one for key, one in state.items() if one}, "param_groups": groups}
