"""A state as plain arrays under plain keys: "name/field" for each tensor, and a few about the whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from layerwise.errors import StateError
from layerwise.numpy._arrays import Array, is_floating
from layerwise.numpy._slots import Slot

FORMAT = 1


class Saved(NamedTuple):
    """A state dict taken apart."""

    entries: dict[str, dict[str, Array]]
    lr: float | None
    skipped: int


def dump(optimizer: str, slots: Mapping[str, Slot], lr: float | None, skipped: int) -> dict[str, Array]:
    state = {"optimizer": np.array(optimizer), "format": np.array(FORMAT), "skipped": np.array(skipped)}
    if lr is not None:
        state["lr"] = np.array(lr)
    for name, slot in slots.items():
        state[f"{name}/step"] = np.array(slot.step)
        state[f"{name}/shape"] = np.array(slot.shape, dtype=np.int64)
        kept = slot.state._asdict().items()
        state.update({f"{name}/{key}": array.copy() for key, array in kept if array is not None})
    return state


def parse(optimizer: str, state: Mapping[str, Any]) -> Saved:
    """Take a state dict apart, holding what concerns the whole to its form."""
    header = {key: np.asarray(value) for key, value in state.items() if "/" not in key}
    for key in header:
        if key not in ("optimizer", "format", "skipped", "lr"):
            raise StateError(f"the state has an unknown key {key!r}. It was not written by state_dict().")
    for key in ("optimizer", "format", "skipped"):
        if key not in header:
            raise StateError(f"the state lacks the key {key!r}. Pass what state_dict() gave, all of it.")
    if str(header["optimizer"]) != optimizer:
        raise StateError(f"the state is of {header['optimizer']}, not of {optimizer}. Load it into the same optimizer.")
    if int(header["format"]) != FORMAT:
        raise StateError(f"the state has format {header['format']}; this version reads {FORMAT}. Update layerwise.")
    entries: dict[str, dict[str, Array]] = {}
    for key, value in state.items():
        if "/" in key:
            name, _, field = key.rpartition("/")
            entries.setdefault(name, {})[field] = np.asarray(value)
    return Saved(entries, float(header["lr"]) if "lr" in header else None, int(header["skipped"]))


def shape(name: str, entry: Mapping[str, Array]) -> tuple[int, ...]:
    """The shape of a saved tensor."""
    for field in ("step", "shape"):
        if field not in entry or entry[field].dtype.kind not in "iu" or (entry[field] < 0).any():
            raise StateError(f"the state lacks {name + '/' + field!r}, or it is not made of integers ≥ 0.")
    return tuple(int(n) for n in entry["shape"])


def slot(name: str, entry: Mapping[str, Array], expected: Any) -> Slot:
    """One tensor's state, held to the shapes that the options and the tensor's shape call for."""
    shapes = {field: s for field, s in expected._asdict().items() if s is not None}
    unknown = entry.keys() - shapes.keys() - {"step", "shape"}
    missing = shapes.keys() - entry.keys()
    if unknown or missing:
        raise StateError(
            f"the state of {name!r} does not fit these options: unknown {sorted(unknown)}, missing {sorted(missing)}. "
            "Make the optimizer with the options it was saved with."
        )
    for field, wanted in shapes.items():
        if entry[field].shape != wanted or not is_floating(entry[field].dtype):
            raise StateError(
                f"{name + '/' + field!r} must be floating point of shape {wanted}, "
                f"but is {entry[field].dtype} of shape {entry[field].shape}."
            )
    state = type(expected)(*(None if s is None else entry[f].copy() for f, s in expected._asdict().items()))
    return Slot(shape(name, entry), state, step=int(entry["step"]))
