"""The intermediate form: an optimizer's state of each tensor, under the rule's names, in NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from layerwise.errors import HyperparameterError, StateError, sentence, with_article
from layerwise.options.by_name import check_matched, first_few
from layerwise.rules.requests import Array

Names = Mapping[str, str] | Callable[[str], str] | None
"""Names in the target by name here: a mapping, or a function of the name."""
Axes = Mapping[str, Sequence[int]] | Callable[[str], Sequence[int] | None] | None
"""Orders of dimensions by name: a mapping, or a function of the name; None leaves the order as it is."""
Shape = tuple[int, ...]
# Options that change the meaning of the same fields, and their values in rules without such an option.
MEANING = ("grad_averaging", "lr_in_momentum", "maximize", "normalize")
Fields = dict[str, np.ndarray]  # of a state, by name
IMPLIED = {"AdamW": {"grad_averaging": True}, "SGD": {"lr_in_momentum": False}}
# Without the trust ratio these take the steps of another optimizer.
PLAINLY = {"Lamb": "AdamW", "Lars": "SGD"}


class Kept(NamedTuple):
    """The state of one tensor."""

    rule: str  # "Lamb", or "AdamW" for LAMB without its ratio
    step: int
    shape: Shape
    fields: Mapping[str, np.ndarray]
    meaning: Mapping[str, object] = {}


class TensorFields(NamedTuple):
    """The fields that an optimizer has for one tensor."""

    rule: str
    meaning: Mapping[str, object] = {}

    @classmethod
    def of(cls, rule: str, h: object) -> TensorFields:
        """Return the fields that a rule with these options, from a group or an object, has."""
        names = (*MEANING, "adapt", "keep_norm")
        options = h if isinstance(h, Mapping) else {name: getattr(h, name) for name in names if hasattr(h, name)}
        if options.get("adapt") is False and not options.get("keep_norm"):
            rule = PLAINLY.get(rule, rule)
        own = {name: options[name] for name in MEANING if name in options}
        return cls(rule, {**IMPLIED.get(rule, {}), **own})

    def kept(self, step: int, shape: Shape, fields: Mapping[str, np.ndarray]) -> Kept:
        """Return the state."""
        return Kept(self.rule, step, shape, fields, self.meaning)


def numbers_of(x: Array) -> np.ndarray:
    """Return an array with numbers of at least float32."""
    found = np.asarray(x)
    return found.astype(np.float64 if found.dtype == np.float64 else np.float32)


def value_of(given: Any, name: str) -> Any:
    """Return the value of a mapping or a function for a name."""
    return given(name) if callable(given) else (given or {}).get(name)


def in_order(name: str, order: Sequence[int], n: int) -> tuple[int, ...]:
    """Return an order of the dimensions of a tensor of this name; raise if it is none."""
    if sorted(found := tuple(order)) != [*range(n)]:
        way_out = "Pass (1, 0) for a matrix whose rows are columns there."
        allowed = f"an order of the {n} dimensions, counted from 0"
        raise HyperparameterError(sentence(f"axes[{name!r}]", allowed, found, way_out))
    return found


def permuted(parts: Fields, axes: Sequence[int] | None) -> Fields:
    """Return the parts with their dimensions in another order. Rows become columns if the two change places."""
    if axes is None:
        return parts
    parts = {part: np.transpose(array, axes) for part, array in parts.items()}
    for name in [part.removesuffix("_row") for part in parts if part.endswith("_row")]:
        row, col = parts[f"{name}_row"], parts[f"{name}_col"]
        cut = [d for d in range(row.ndim) if row.shape[d] != col.shape[d]]
        # A mean over the earlier dimension is one of columns. If a matrix has only one row or column, its shapes do not
        # tell over which dimension the mean ran.
        is_column = axes[0] == 1 if row.ndim == 2 else bool(cut) and row.shape[cut[0]] == 1
        if is_column:
            parts |= {f"{name}_row": col, f"{name}_col": row}
    return parts


def fitted_to_target(
    kept: Mapping[str, Kept], wanted: Mapping[str, TensorFields] | None, names: Names, axes: Axes
) -> dict[str, Kept]:
    """Return the states under the target's names, with dimensions in the target's order."""
    for argument, given in (("names", names), ("axes", axes)):
        check_matched(argument, given if isinstance(given, Mapping) else (), [*kept], exact=True)
    plain = {_plain(name): name for name in wanted or ()}
    found: dict[str, Kept] = {}
    for name, one in kept.items():
        there = value_of(names, name) or (name if wanted is None else plain.get(_plain(name), name))
        if wanted is not None:
            _check(name, one, there, wanted)
        if there in found:
            raise StateError(f"two of the tensors would be named {there} in the target. Pass other names=….")
        order = value_of(axes, name)
        order = None if order is None else in_order(name, order, len(one.shape))
        if order is not None:
            shape = tuple(one.shape[d] for d in order)
            one = one._replace(shape=shape, fields=permuted(dict(one.fields), order))
        found[there] = one
    return found


def _plain(name: str) -> str:
    return name.replace("/", ".")


def _check(name: str, one: Kept, there: str, wanted: Mapping[str, TensorFields]) -> None:
    if there not in wanted:
        raise StateError(
            f"the state has {name}, but the optimizer has no {there}; it has {first_few(wanted)}. Pass names=…, or "
            "drop it from the state."
        )
    rule, meaning = wanted[there]
    if rule != one.rule:
        raise StateError(
            f"the state of {name} is of {one.rule}, but {there} is stepped by {rule}. Pass "
            f"{with_article(one.rule)}, or start {rule} without state."
        )
    for option, value in one.meaning.items():
        if option in meaning and meaning[option] != value:
            raise StateError(
                f"the state of {name} was made with {option}={value!r}, but the optimizer has "
                f"{option}={meaning[option]!r}. Create it with the same option."
            )


def common_count(kept: Mapping[str, Kept], wanted: Iterable[str]) -> int:
    """Return the step count of all tensors, for an optimizer that has one count for all."""
    if missing := [name for name in wanted if name not in kept]:
        raise StateError(f"the state has no {first_few(missing)}. Pass names=…, or a state with all of them.")
    counts = sorted({one.step for one in kept.values()})
    if len(counts) > 1:
        raise StateError(
            f"its parameters have taken different numbers of steps, {counts}, but the target keeps one count for all."
        )
    return counts[0] if counts else 0


def check_fields(name: str, shapes: Mapping[str, Shape], found: Mapping[str, np.ndarray]) -> None:
    """Raise unless the fields are those of these shapes."""
    has = {field: tuple(x.shape) for field, x in found.items()}
    if has != dict(shapes):
        raise StateError(
            f"the state of {name} has {has}, but the optimizer has {dict(shapes)}. Use the same options, or pass "
            "axes=… if dimensions are in another order."
        )
