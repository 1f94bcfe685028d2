"""A state as plain arrays under plain keys: "name/field" for each tensor, and a few for the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from layerwise.core.plan import Plan
from layerwise.core.slot import ArraySpec, NamedState, Slot
from layerwise.errors import HyperparameterError, ParameterError, StateError
from layerwise.numpy._arrays import Array, Arrays, named_dtype
from layerwise.options.by_name import Name, lacks_and_has
from layerwise.options.checks import Check, RefusedValue, number, one_of
from layerwise.storage.options import COUNT, SEED

FORMAT = 1
WAY_OUT = "Pass all that state_dict() returned, unchanged."
# lr and weight_decay are saved unless they are schedules.
SETTINGS = {"lr": number(0), "weight_decay": number(0), "relative_step": one_of(False, "factor", "cap"), "seed": SEED}


class Saved(NamedTuple):
    """The parts of a state dict."""

    slots: dict[Name, Slot]
    settings: Mapping[str, object]
    skipped: int
    step: int


def dump(
    optimizer: str, slots: Mapping[Name, Slot], settings: Mapping[str, object], skipped: int, step: int
) -> dict[str, Array]:
    state = {"optimizer": np.array(optimizer), "format": np.array(FORMAT)}
    state.update({"skipped": np.array(skipped), "step": np.array(step)})
    state.update({name: np.array(value) for name, value in settings.items()})
    ids = [str(name) for name in slots if isinstance(name, int)]
    if ids:
        state["ids"] = np.array(ids)  # as text, because it may exceed every integer dtype
    for name, slot in slots.items():
        state[f"{name}/step"] = np.array(slot.step)
        state[f"{name}/shape"] = np.array(slot.shape, dtype=np.int64)
        state.update({f"{name}/{key}": array.copy() for key, array in slot.arrays.items()})
    return state


def load(
    optimizer: str, state: Any, here: Mapping[str, object], plan_of: Callable[[Name, tuple[int, ...]], Plan]
) -> Saved:
    """Split a state dict into its parts; raise unless it fits this optimizer, its settings and its plans."""
    odd = [key for key in state if not isinstance(key, str)] if isinstance(state, Mapping) else [state]
    if odd:
        raise StateError(f"the state must be a mapping from strings to arrays, but contains {odd[0]!r}. {WAY_OUT}")
    arrays = {key: _readable(key, value) for key, value in state.items()}
    header = {key: value for key, value in arrays.items() if "/" not in key}
    unknown = header.keys() - {"optimizer", "format", "skipped", "step", "ids", *SETTINGS}
    missing = {"optimizer", "format", "skipped", "step"} - header.keys()
    within = [key for key, value in state.items() if isinstance(value, Mapping) and "format" in value]
    if missing and within:
        raise StateError(
            f"the value passed is not a state, but has one under {within[0]!r}. Pass state[{within[0]!r}]."
        )
    if unknown or missing:
        raise StateError(f"{lacks_and_has('the state', missing, unknown, 'a state of layerwise')}. {WAY_OUT}")
    if str(header["optimizer"]) != optimizer:
        raise StateError(f"the state is of {header['optimizer']}, not of {optimizer}. Load it into the same optimizer.")
    if checked_number("format", header, COUNT) != FORMAT:
        raise StateError(f"the state has format {header['format']}, but this version reads {FORMAT}. Update layerwise.")
    entries: dict[Name, dict[str, Array]] = {}
    for key, value in arrays.items():
        if "/" in key:
            name, _, field = key.rpartition("/")
            entries.setdefault(name, {})[field] = value
    slots = {name: _slot(name, entry, plan_of) for name, entry in _with_ids(entries, header).items()}
    return Saved(
        slots, _settings(header, here), checked_number("skipped", header, COUNT), checked_number("step", header, COUNT)
    )


def _with_ids(entries: dict[Name, dict[str, Array]], header: Mapping[str, Array]) -> dict[Name, dict[str, Array]]:
    """Return the entries, with integers for names that were integers."""
    ids = header.get("ids", np.array([], np.str_))
    numbers = {str(one): int(str(one)) for one in ids.ravel() if str(one).lstrip("-").isdecimal()}
    if ids.ndim != 1 or list(map(str, numbers.values())) != ids.tolist() or not numbers.keys() <= entries.keys():
        raise StateError(f"'ids' must list the names that are integers, but is {ids!r}. {WAY_OUT}")
    return {numbers.get(str(name), name): entry for name, entry in entries.items()}


def _readable(key: str, value: object) -> Array:
    try:
        return np.asarray(value)
    except Exception as problem:  # a foreign array may raise anything when it is read
        raise StateError(f"{key!r} cannot be read as an array of numbers: {problem} {WAY_OUT}") from None


def checked_number(key: str, entry: Mapping[str, object], check: Check, whose: str = "") -> Any:
    """Return a number of a state; raise unless this check allows it."""
    try:
        return check.convert(entry.get(key))
    except RefusedValue:
        raise StateError(f"{whose + key!r} must be {check.allowed}, but is {entry.get(key)!r}. {WAY_OUT}") from None


def _settings(header: Mapping[str, Array], here: Mapping[str, object]) -> dict[str, object]:
    """Return the saved settings that an optimizer with these settings restores."""
    found = {name: checked_number(name, header, check) for name, check in SETTINGS.items() if name in header}
    common = {name: value for name, value in found.items() if name in here}
    role, own = common.pop("relative_step", False), here.get("relative_step", False)
    if "lr" in common and role != own:
        raise StateError(
            f"the state was saved with lr={common['lr']} and relative_step={role!r}, but this optimizer has "
            f"lr={here['lr']} and relative_step={own!r}, which give lr another meaning. Create the optimizer with "
            "the options it was saved with."
        )
    return common


def _slot(name: Name, entry: Mapping[str, Array], plan_of: Callable[[Name, tuple[int, ...]], Plan]) -> Slot:
    """Return one tensor's state, with the shapes checked against the options and the tensor's shape."""
    shape = entry.get("shape")
    if shape is None or shape.ndim != 1 or (shape.size and shape.dtype.kind not in "iu") or (shape < 0).any():
        raise StateError(f"{f'{name}/shape'!r} must be a list of integers ≥ 0, but is {shape!r}. {WAY_OUT}")
    try:
        plan = plan_of(name, tuple(map(int, shape)))
    except ParameterError as problem:
        raise StateError(str(problem)) from None
    parts = NamedState(Arrays(), entry).expected(plan)
    unknown = entry.keys() - parts.keys() - {"step", "shape"}
    missing = {"step", *(key for key, part in parts.items() if part.needed)} - entry.keys()
    if unknown or missing:
        raise StateError(
            f"the state of {name!r} does not fit these options: unknown are {_keys(name, unknown)}, missing are "
            f"{_keys(name, missing)}. Create the optimizer with the options it was saved with."
        )
    arrays = {key: _array(f"{name}/{key}", entry[key], part) for key, part in parts.items() if key in entry}
    arrays = NamedState(Arrays(), arrays).in_present_formats()
    return Slot(arrays, checked_number("step", entry, COUNT, f"{name}/"), plan.shape)


def _keys(name: Name, fields: set[str]) -> str:
    return ", ".join(repr(f"{name}/{field}") for field in sorted(fields)) or "none"


def _array(key: str, array: Array, part: ArraySpec) -> Array:
    """Return an array, if it is valid for this part of the state."""
    if array.dtype == np.dtype("V2"):  # files store bfloat16, which NumPy does not know, as these bytes
        try:
            array = np.asarray(array.view(named_dtype(key, "bfloat16")))
        except HyperparameterError as problem:
            raise StateError(str(problem)) from None
    if array.shape != part.shape or array.dtype.name not in part.dtypes:
        kind = " or ".join([*["floating point"] * (part.others != part.dtypes), *part.others])
        raise StateError(f"{key!r} must be {kind} of shape {part.shape}, but is {array.dtype} of {array.shape}.")
    return np.array(array)
