"""Checkpoints of ours in the form that other optimizers load."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layerwise import factoring
from layerwise.core.storing import as_numbers
from layerwise.errors import StateError
from layerwise.storage.options import MASTER, REMAINDER, SCALE
from layerwise.torch.checkpoints import _matching, _origin, _others
from layerwise.torch.checkpoints._matching import MOVED
from layerwise.torch.step._bytes import restored
from layerwise.torch.step._namespace import LIBRARY
from layerwise.torch.step._state import checked_lr
from layerwise.torch.step._storage import is_group

State = dict[str, Any]
Group = Mapping[str, Any]
ALIKE = ("exp_avg", "exp_avg_sq", "momentum_buffer")  # as large as the parameter, where there are such


class Place(NamedTuple):
    """A parameter of another optimizer, and our group from which its state comes."""

    optimizer: Any
    number: int  # of the group
    i: int  # in the group
    p: Tensor
    ours: Group

    @property
    def group(self) -> Group:
        found: Group = self.optimizer.param_groups[self.number]
        return found


class Target(NamedTuple):
    """One optimizer that ours are converted to."""

    state: Callable[[State, Place], State]
    group: Callable[[Group, Group], State]  # what a group takes over, given theirs and ours
    counts_by_group: Callable[[int], Any] | None = None  # the step count of a group, for those that count there


def convert_back(state_dict: Mapping[str, Any], optimizer: Any, target: str) -> dict[str, Any]:
    """Return a checkpoint of `layerwise.torch` as a state_dict that another optimizer loads.

    That optimizer has the same parameters, in the same groups or with names. Its options stay as they were given,
    except those that schedulers move. If its rule is another than ours, these stay too, and a warning says both.
    Weights that are held beside the parameters are not carried over.

    Args:
        state_dict: The state_dict() of our optimizer.
        optimizer: The other optimizer.
        target: Its name. The error for an unknown one lists all names.
    """
    _others.check_name(target, TARGETS, "to")
    if not _others.is_named(optimizer, target):
        raise StateError(
            f"`optimizer` must be that of {target}, but is a {type(optimizer).__name__} of "
            f"{type(optimizer).__module__}. Pass the one that is to go on."
        )
    try:
        made, kept = _converted(state_dict, optimizer, target)
    except StateError:
        raise
    except _others.MALFORMED as problem:
        raise StateError(
            f"this is no state that {target} could go on from: {problem!r}. Pass the state_dict() of our optimizer of "
            "its kind."
        ) from None
    if kept:
        warnings.warn(
            f"{target} has another rule, so rates stay as given there: {', '.join(kept)}. To change them, set them in "
            "its `param_groups`.",
            stacklevel=2,
        )
    return made


def _converted(state_dict: Mapping[str, Any], optimizer: Any, name: str) -> tuple[dict[str, Any], list[str]]:
    """Return the checkpoint, and which rates of theirs stay although ours differ."""
    target, rule = TARGETS[name], _origin.WRITERS[name].rule
    kept: dict[str, None] = {}
    template = optimizer.state_dict()["param_groups"]
    names = [group["param_names"] for group in template] if all("param_names" in one for one in template) else None
    found = _matching.aligned(template, names, state_dict["param_groups"])
    _matching.check_owned(state_dict)
    firsts: list[Group] = [members[0][0] if members else {} for members in found]
    same = all(_origin.same_rule(rule, _origin.written_by(ours), ours) for ours in firsts if ours)
    states: dict[Any, State] = {}
    groups = []
    for number, (group, members, first) in enumerate(zip(template, found, firsts, strict=True)):
        steps = set()
        for i, (key, (ours, old)) in enumerate(zip(group["params"], members, strict=True)):
            if state := state_dict["state"].get(old):
                place = Place(optimizer, number, i, optimizer.param_groups[number]["params"][i], ours)
                numbers = _in_numbers(state, place.p)
                steps.add(numbers["step"])
                states[key] = target.state(numbers, place)
        rates = {**target.group(group, first), **_kept(first, "initial_lr")} if first else {}
        if not same:
            kept |= dict.fromkeys(_matching.differing(group, rates))
            rates = {}
        groups.append({**group, **rates, **_counted(steps, target)})
    return {"state": states, "param_groups": groups}, list(kept)


def _in_numbers(state: Mapping[str, Any], p: Tensor) -> State:
    """Return a parameter's state with numbers for codes, in tensors of its own."""
    state = restored(state, p.shape)
    found: State = {"step": int(state["step"])}
    for key, x in state.items():
        if key not in ("step", MASTER, REMAINDER) and not key.endswith(SCALE):
            found[key] = as_numbers(LIBRARY, state, key, x.dtype is torch.int8) if is_group(x) else x.clone()
    for key in ALIKE:
        if key in found and found[key].shape != p.shape:
            raise StateError(
                f"{key!r} must have the shape {tuple(p.shape)} of its parameter, but has {tuple(found[key].shape)}. It "
                "is of another model, or of an optimizer whose state theirs cannot hold."
            )
    return found


def _counted(steps: set[int], target: Target) -> State:
    if target.counts_by_group is None or not steps:
        return {}
    if len(steps) > 1:
        raise StateError(
            f"parameters of a group have taken {sorted(steps)} steps, and theirs has one count for all of them."
        )
    return {"step": target.counts_by_group(steps.pop())}


def _kept(ours: Group, *names: str) -> State:
    return {name: ours[name] for name in names if ours.get(name) is not None}


def _rates(theirs: Group, ours: Group) -> State:
    """Return the numbers that schedulers move, in tensors where theirs are."""
    found = _kept(ours, *(name for name in MOVED if name in theirs))
    if isinstance(lr := theirs.get("lr"), Tensor) and "lr" in found:
        found["lr"] = torch.as_tensor(found["lr"], dtype=lr.dtype, device=lr.device)
    return found


# ---- Adam's state


def _adam(state: State, place: Place) -> State:
    if not place.ours.get("grad_averaging", True):
        raise StateError(
            "exp_avg was made with grad_averaging=False, so that it is a sum and not a mean. Only apex.FusedLAMB with "
            "grad_averaging=False goes on from it."
        )
    if place.group.get("amsgrad"):
        raise StateError("theirs has amsgrad=True, and ours keeps no maximum. Make it without.")
    return {"step": torch.tensor(float(state["step"])), "exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}


def _moments(state: State, place: Place) -> State:
    return {key: x for key, x in _adam(state, place).items() if key != "step"}


def _apex(state: State, place: Place) -> State:
    theirs, ours = bool(place.group["grad_averaging"]), place.ours.get("grad_averaging", True)
    if theirs != ours:
        raise StateError(f"exp_avg was made with grad_averaging={ours}, and theirs has {theirs}. Make it with {ours}.")
    return {"exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}


def _torchao(state: State, place: Place) -> State:
    """Return moments in buffers of theirs, which quantize what is copied there."""
    found = _adam(state, place)
    for key, signed in (("exp_avg", True), ("exp_avg_sq", False)):
        found[key] = place.optimizer._new_buffer(place.p, signed).copy_(found[key])
    return found


def _flash_adam(state: State, place: Place) -> State:
    """Return numbers, which FlashOptim quantizes when it loads them."""
    return {**_adam(state, place), "step": torch.tensor(state["step"])}


# ---- momentum


def _momentum(state: State, place: Place) -> State:
    buffer = state["momentum_buffer"]
    if place.ours.get("lr_in_momentum", False):
        buffer = buffer / checked_lr("the checkpoint", place.ours["lr"], False)
    return {"momentum_buffer": buffer}


# ---- Adafactor


def _torch_adafactor(state: State, place: Place) -> State:
    if "exp_avg" in state:
        raise StateError("torch.optim.Adafactor has no momentum, and ours has beta1. Go on without conversion.")
    step = torch.tensor(float(state["step"]))
    if place.p.ndim < 2:
        return {"step": step, "variance": state["exp_avg_sq"]}
    row, col = _means(state, place, place.p.ndim - 2, place.p.ndim - 1)
    return {"step": step, "row_var": row, "col_var": col}


def _transformers_adafactor(state: State, place: Place) -> State:
    n = place.p.ndim
    return _adafactor(state, place, (n - 2, n - 1) if n > 1 else None)


def _timm_adafactor(state: State, place: Place) -> State:
    return _adafactor(state, place, _others.timm_dims(tuple(place.p.shape), place.group["min_dim_size_to_factor"]))


def _adafactor(state: State, place: Place, dims: tuple[int, int] | None) -> State:
    found = {"step": state["step"], "RMS": 0.0, **_average(state, place, place.group["beta1"] is not None, True)}
    if dims is None:
        return {**found, "exp_avg_sq": state["exp_avg_sq"]}
    row, col = _means(state, place, *dims)
    return {**found, "exp_avg_sq_row": row.squeeze(dims[1]), "exp_avg_sq_col": col.squeeze(dims[0])}


def _big_vision(state: State, place: Place) -> State:
    shape = tuple(place.p.shape)
    found = {"step": torch.tensor(float(state["step"])), **_average(state, place, bool(place.group["momentum"]), False)}
    factored = factoring.dims("largest", shape, place.group["min_dim_size_to_factor"])
    if factored is None:
        return {**found, "exp_avg_sq": state["exp_avg_sq"]}
    (rows,), (cols,) = factored
    row, col = _means(state, place, rows, cols)
    if shape[rows] > shape[cols]:  # ours are rows along the earlier of the two dimensions, theirs along the smaller one
        row, col = col, row
    return {**found, "exp_avg_sq_r": row, "exp_avg_sq_c": col}


def _average(state: State, place: Place, wanted: bool, within: bool) -> State:
    """Return the momentum, if theirs averages the same: whole steps, or directions."""
    if ("exp_avg" in state) != wanted:
        raise StateError(
            "one of the two optimizers has a momentum and the other has none. Give both beta1, or neither."
        )
    if wanted and place.ours.get("lr_in_momentum", True) != within:
        raise StateError(
            f"theirs averages {'whole steps' if within else 'directions'}, and exp_avg was made with "
            f"lr_in_momentum={not within}. Only a run with lr_in_momentum={within} can go on there."
        )
    return {"exp_avg": state["exp_avg"]} if wanted else {}


def _means(state: State, place: Place, rows: int, cols: int) -> tuple[Tensor, Tensor]:
    """Return the means, if ours are of the dimensions that theirs has as rows and columns."""
    shape, found = tuple(place.p.shape), []
    for key, gone in (("exp_avg_sq_row", cols), ("exp_avg_sq_col", rows)):
        if key not in state or tuple(state[key].shape) != (*shape[:gone], 1, *shape[gone + 1 :]):
            raise StateError(
                f"theirs factors a tensor of the shape {shape} by rows along {rows} and columns along {cols}, "
                f"and ours did not. Only a run with factored=({rows}, {cols}) for it can go on there."
            )
        found.append(state[key])
    return found[0], found[1]


def _of_adafactor(theirs: Group, ours: Group) -> State:
    """Return the rates; lr where it means a step in both."""
    rates = _rates(theirs, ours)
    if theirs.get("relative_step") or ours.get("relative_step"):
        rates.pop("lr", None)
    return rates


def _of_torch_adafactor(theirs: Group, ours: Group) -> State:
    rates = _rates(theirs, ours)
    return rates if ours.get("relative_step") == "cap" else {k: x for k, x in rates.items() if k != "lr"}


# ---- bitsandbytes


def _bitsandbytes(state: State, place: Place, fields: Sequence[str]) -> State:
    """Return states in 8 bits where theirs has those of a parameter in 8 bits."""
    theirs = place.optimizer
    config = theirs.get_config(place.number, place.i, place.group)
    small = config["optim_bits"] == 8 and place.p.numel() >= config["min_8bit_size"]
    found: State = {"step": state["step"]}
    if small and "dynamic" not in theirs.name2qmap:
        theirs.fill_qmap()
    for n, (key, name) in enumerate(zip(fields, ("dynamic", "udynamic"), strict=False), 1):
        found[f"state{n}"] = state[key].float()
        if small:
            table = theirs.name2qmap[name].to(place.p.device)
            codes, largest = _others.to_bitsandbytes(state[key], table)
            found |= {f"state{n}": codes, f"qmap{n}": table, f"absmax{n}": largest}
    return {**found, **({"unorm_vec": torch.zeros(1, device=place.p.device)} if config["max_unorm"] > 0 else {})}


def _bitsandbytes_adam(state: State, place: Place) -> State:
    return _bitsandbytes({**_adam(state, place), "step": state["step"]}, place, ("exp_avg", "exp_avg_sq"))


def _bitsandbytes_sgd(state: State, place: Place) -> State:
    return _bitsandbytes({**_momentum(state, place), "step": state["step"]}, place, ("momentum_buffer",))


def _of_bitsandbytes_adam(theirs: Group, ours: Group) -> State:
    return {**_rates(theirs, ours), "betas": (*ours["betas"], *theirs["betas"][2:])}


def _of_bitsandbytes_sgd(theirs: Group, ours: Group) -> State:
    return {**_rates(theirs, ours), "betas": (ours["momentum"], *theirs["betas"][1:])}


def _as_tensor(step: int) -> Tensor:
    return torch.tensor(float(step))


TARGETS = {
    "apex.FusedLAMB": Target(_apex, _rates, int),
    **dict.fromkeys(("bitsandbytes.Adam", "bitsandbytes.LAMB"), Target(_bitsandbytes_adam, _of_bitsandbytes_adam)),
    **dict.fromkeys(("bitsandbytes.SGD", "bitsandbytes.LARS"), Target(_bitsandbytes_sgd, _of_bitsandbytes_sgd)),
    **dict.fromkeys(("flashoptim.FlashAdam", "flashoptim.FlashAdamW"), Target(_flash_adam, _rates)),
    "flashoptim.FlashSGD": Target(_momentum, _rates),
    "timm.Adafactor": Target(_timm_adafactor, _of_adafactor),
    "timm.AdafactorBigVision": Target(_big_vision, _of_adafactor),
    "timm.Lamb": Target(_moments, _rates, _as_tensor),
    "timm.Lars": Target(_momentum, _rates),
    "torch.Adafactor": Target(_torch_adafactor, _of_torch_adafactor),
    **dict.fromkeys(("torch.Adam", "torch.AdamW"), Target(_adam, _rates)),
    "torch.SGD": Target(_momentum, _rates),
    **dict.fromkeys(("torchao.AdamW8bit", "torchao.AdamW4bit", "torchao.AdamWFp8"), Target(_torchao, _rates)),
    "transformers.Adafactor": Target(_transformers_adafactor, _of_adafactor),
}
