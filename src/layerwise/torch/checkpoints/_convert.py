"""Checkpoints of other optimizers in the form that ours load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from layerwise.errors import StateError, sentence
from layerwise.torch.checkpoints import _matching, _origin, _others
from layerwise.torch.checkpoints._matching import MOVED
from layerwise.torch.step._kinds import RULE
from layerwise.torch.step._state import checked_lr

State = dict[str, Any]
Group = Mapping[str, Any]


class Source(NamedTuple):
    """One optimizer whose checkpoints can be converted."""

    state: Callable[[State, Group], State]
    options: Callable[[Group], dict[str, Any]]  # those that say how far a run has come, or what its state means
    momentum: bool = False  # whether there is a momentum that can be kept with lr in it or without


def _adam_like(state: State, group: Group) -> State:
    """Return the state: apex and timm count steps in the group, not in the state."""
    if "max_exp_avg_sq" in state:
        raise StateError("the checkpoint is of amsgrad, whose maximum no optimizer here keeps. It cannot be converted.")
    return {"step": state.get("step", group.get("step")), **{k: state[k] for k in ("exp_avg", "exp_avg_sq")}}


def _torchao(state: State, group: Group) -> State:
    """Return the moments as numbers: torchao's are tensors of a class of their own, of 8 or 4 bits and their scales."""
    numbers = {k: state[k] for k in ("exp_avg", "exp_avg_sq")}
    return _adam_like({**state, **{k: x if type(x) is Tensor else x.dequantize() for k, x in numbers.items()}}, group)


def _bitsandbytes_adam(state: State, group: Group) -> State:
    m, v = _others.from_bitsandbytes(state, 1), _others.from_bitsandbytes(state, 2)
    if m.shape != v.shape:
        raise StateError("the checkpoint is of AdEMAMix, which has two momenta. It cannot be converted.")
    return {"step": state["step"], "exp_avg": m, "exp_avg_sq": v}


def _bitsandbytes_sgd(state: State, group: Group) -> State:
    """Return the momentum of what has the options of SGD: Lion, RMSprop and Adagrad keep other things there."""
    momentum, second = group["betas"][:2]
    if second or not momentum or group["eps"]:
        raise StateError(
            f"betas={tuple(group['betas'])} and eps={group['eps']} are not those of SGD or LARS of bitsandbytes. Its "
            "Lion, RMSprop and Adagrad cannot be converted."
        )
    return {"step": state["step"], "momentum_buffer": _others.from_bitsandbytes(state, 1)}


def _flash_adam(state: State, group: Group) -> State:
    moments = {key: _others.from_flashoptim(state, key) for key in ("exp_avg", "exp_avg_sq")}
    return {"step": state["step"], **moments}


def _flash_sgd(state: State, group: Group) -> State:
    return {"step": 1, "momentum_buffer": _others.from_flashoptim(state, "momentum_buffer")}


def _sgd(state: State, group: Group) -> State:
    """Return momentum without lr. SGD counts no steps; all that matters is that the first one is over."""
    buffer = state["momentum_buffer"]
    return {} if buffer is None else {"step": 1, "momentum_buffer": buffer}


def _torch_adafactor(state: State, group: Group) -> State:
    names = {"row_var": "exp_avg_sq_row", "col_var": "exp_avg_sq_col", "variance": "exp_avg_sq", "step": "step"}
    kept = {names[key]: value for key, value in state.items() if key in names and value is not None}
    return {"step": kept.pop("step"), **(kept if kept else {"exp_avg_sq": state["variance"]})}


def _transformers_adafactor(state: State, group: Group) -> State:
    """Return the state: row means lack the last dimension there, column means the last but one; steps measure RMS."""
    kept: State = {"step": state["step"], **{k: state[k] for k in ("exp_avg", "exp_avg_sq") if k in state}}
    if "exp_avg_sq" not in state:
        kept["exp_avg_sq_row"] = state["exp_avg_sq_row"].unsqueeze(-1)
        kept["exp_avg_sq_col"] = state["exp_avg_sq_col"].unsqueeze(-2)
    return kept


def _timm_adafactor(state: State, group: Group) -> State:
    """Put back the dimensions that means lack: of the first two dimensions of a convolution, or the last two."""
    kept: State = {"step": state["step"], **{k: state[k] for k in ("exp_avg", "exp_avg_sq") if k in state}}
    if "exp_avg_sq" not in state:
        row, col = state["exp_avg_sq_row"], state["exp_avg_sq_col"]
        rows, cols = _others.timm_dims_of(tuple(row.shape), tuple(col.shape), group["min_dim_size_to_factor"])
        kept |= {"exp_avg_sq_row": row.unsqueeze(cols), "exp_avg_sq_col": col.unsqueeze(rows)}
    return kept


def _big_vision(state: State, group: Group) -> State:
    """Ours are rows along the earlier of the two dimensions, and theirs along the smaller one."""
    kept: State = {"step": state["step"], **{k: state[k] for k in ("exp_avg", "exp_avg_sq") if k in state}}
    if "exp_avg_sq" not in state:
        row, col = state["exp_avg_sq_r"], state["exp_avg_sq_c"]
        cut = [d for d in range(row.ndim) if row.shape[d] != col.shape[d]]
        row, col = (row, col) if not cut or row.shape[cut[-1]] == 1 else (col, row)
        kept |= {"exp_avg_sq_row": row, "exp_avg_sq_col": col}
    return kept


def _rates(group: Group) -> dict[str, Any]:
    return {name: group[name] for name in (*MOVED, "initial_lr", "maximize") if name in group}


def _of_adam(group: Group) -> dict[str, Any]:
    return {**_rates(group), "grad_averaging": bool(group.get("grad_averaging", True))}


def _of_sgd(group: Group) -> dict[str, Any]:
    return {**_rates(group), "lr_in_momentum": False}


def _of_torch_adafactor(group: Group) -> dict[str, Any]:
    """Return our settings: the lr of PyTorch's Adafactor bounds the relative step."""
    return {**_rates(group), "lr": group["lr"], "relative_step": "cap"}


def _of_transformers_adafactor(group: Group) -> dict[str, Any]:
    """Return our settings. With a relative step lr is unused, though AdafactorSchedule writes numbers there."""
    rates = _rates(group)
    if group["relative_step"]:
        rates.pop("initial_lr", None)
        rates["lr"] = None
    return {**rates, "lr_in_momentum": True}


def _of_big_vision(group: Group) -> dict[str, Any]:
    rates = _rates(group)
    rates.pop("momentum", None)  # beta1 here
    return {**rates, "lr_in_momentum": False}


def _without_start(options: Callable[[Group], dict[str, Any]]) -> Callable[[Group], dict[str, Any]]:
    """Return options without initial_lr, which FlashOptim writes down where no schedule began."""
    return lambda group: {k: x for k, x in options(group).items() if k != "initial_lr" or x != group["lr"]}


def _of_bitsandbytes_adam(group: Group) -> dict[str, Any]:
    return {**_of_adam(group), "betas": tuple(group["betas"][:2])}


def _of_bitsandbytes_sgd(group: Group) -> dict[str, Any]:
    rates = _of_sgd(group)
    rates.pop("betas")
    return {**rates, "momentum": group["betas"][0]}


SOURCES = {
    **dict.fromkeys(("bitsandbytes.Adam", "bitsandbytes.LAMB"), Source(_bitsandbytes_adam, _of_bitsandbytes_adam)),
    **dict.fromkeys(
        ("bitsandbytes.SGD", "bitsandbytes.LARS"), Source(_bitsandbytes_sgd, _of_bitsandbytes_sgd, momentum=True)
    ),
    **dict.fromkeys(("flashoptim.FlashAdam", "flashoptim.FlashAdamW"), Source(_flash_adam, _without_start(_of_adam))),
    "flashoptim.FlashSGD": Source(_flash_sgd, _without_start(_of_sgd), momentum=True),
    "timm.Adafactor": Source(_timm_adafactor, _of_transformers_adafactor),
    "timm.AdafactorBigVision": Source(_big_vision, _of_big_vision),
    "apex.FusedLAMB": Source(_adam_like, _of_adam),
    "timm.Lamb": Source(_adam_like, _of_adam),
    **dict.fromkeys(("torch.Adam", "torch.AdamW"), Source(_adam_like, _of_adam)),
    "timm.Lars": Source(_sgd, _of_sgd, momentum=True),
    **dict.fromkeys(("torchao.AdamW8bit", "torchao.AdamW4bit", "torchao.AdamWFp8"), Source(_torchao, _of_adam)),
    "torch.SGD": Source(_sgd, _of_sgd, momentum=True),
    "torch.Adafactor": Source(_torch_adafactor, _of_torch_adafactor),
    "transformers.Adafactor": Source(_transformers_adafactor, _of_transformers_adafactor),
}


def convert(state_dict: Mapping[str, Any], source: str, *, lr_in_momentum: bool | None = None) -> dict[str, Any]:
    """Return another optimizer's checkpoint as a state_dict for the optimizer of its kind in `layerwise.torch`.

    Give options when you make the optimizer, for instance by a preset. Of the groups the result has only the rates that
    schedulers move, the options on which the meaning of the state depends, and the rule. An optimizer that has another
    rule, such as LAMB for AdamW's state, keeps its own rates in all groups, and warns where they differ.

    Args:
        state_dict: The other optimizer's state_dict().
        source: The name of the other optimizer. The error for an unknown one lists all names.
        lr_in_momentum: The form of LARS's momentum in the result, with lr in it or not; None keeps that of the source.
            The optimizer that loads it converts it to its own.
    """
    _others.check_name(source, SOURCES, "of")
    one = SOURCES[source]
    if lr_in_momentum not in (None, False, True):
        way_out = "None keeps the form that the source has."
        raise StateError(sentence("lr_in_momentum", "True, False or None", lr_in_momentum, way_out))
    if lr_in_momentum is not None and not one.momentum:
        raise StateError(f"lr_in_momentum is for a momentum of gradients, which {source} does not have. Leave it out.")
    try:
        _origin.check_source(source, state_dict)
        made = _converted(state_dict, one, _origin.WRITERS[source].rule)
        return _with_lr(made) if lr_in_momentum else made
    except StateError:
        raise
    except _others.MALFORMED as problem:
        raise StateError(f"this is not what {source} saves: {problem!r}. Pass its state_dict(), all of it.") from None


def _converted(state_dict: Mapping[str, Any], source: Source, rule: str) -> dict[str, Any]:
    state: dict[Any, State] = {}
    groups = []
    for group in state_dict["param_groups"]:
        kept = {key: group[key] for key in ("params", "param_names") if key in group}
        groups.append({**kept, **source.options(group), RULE: rule})
        for key in group["params"]:
            if found := state_dict["state"].get(key):
                made = source.state(found, group)
                _check_numbers(made)
                state[key] = {k: v.clone() if isinstance(v, Tensor) else v for k, v in made.items()}
    _matching.check_owned(state_dict)
    return {"state": {key: one for key, one in state.items() if one}, "param_groups": groups}


def _check_numbers(state: State) -> None:
    """Raise if state is in codes, whose scales would be lost."""
    for key, x in state.items():
        if key != "step" and not x.is_floating_point():
            raise StateError(
                f"{key!r} must have floating-point numbers, but has {x.dtype}. Give the name of the optimizer that "
                "saved it; what optimizers of layerwise save needs no conversion."
            )


def _with_lr(made: dict[str, Any]) -> dict[str, Any]:
    """Return the same with lr in the momentum: multiplied by lr, which is exact if lr was constant."""
    for group in made["param_groups"]:
        group["lr_in_momentum"] = True
        for one in (made["state"][key] for key in group["params"] if key in made["state"]):
            one["momentum_buffer"] = one["momentum_buffer"] * checked_lr("the checkpoint", group["lr"], True)
    return made
