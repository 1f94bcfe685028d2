"""States of `layerwise.mlx`, and of MLX's own optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from layerwise.convert._kept import Fields, Kept, TensorFields, check_fields, common_count, numbers_of
from layerwise.errors import StateError

Entries = dict[str, dict[str, mx.array]]  # arrays of MLX by field, by name


def _numbers(x: mx.array) -> np.ndarray:
    return numbers_of(np.asarray(x if x.dtype == mx.float64 else x.astype(mx.float32)))


class InTree:
    """An optimizer with a tree of states, structured like the tree of parameters."""

    def __init__(self, optimizer: Any, params: object) -> None:
        self.optimizer = optimizer
        if params is not None:
            optimizer.init(params)

    of: TensorFields  # the state of each parameter

    def entries(self) -> Entries:
        """Return the arrays by name and field."""
        found: Entries = {}
        flat: Any = tree_flatten(self.optimizer.state)
        for path, x in flat:
            name, _, field = path.rpartition(".")
            if name:
                found.setdefault(name, {})[field] = x
        return found

    def wanted(self) -> dict[str, TensorFields]:
        if not (entries := self.entries()):
            raise StateError("the optimizer has no state yet. Pass params, or call optimizer.init(params).")
        return dict.fromkeys(entries, self.of)

    def read(self) -> dict[str, Kept]:
        step, found = int(self.optimizer.state["step"].item()), {}
        for name, parts in self.entries().items() if step else ():
            fields = self.to_ours({field: _numbers(x) for field, x in parts.items()})
            shape = np.broadcast_shapes(*(x.shape for x in (fields or parts).values()))
            found[name] = self.of.kept(step, shape, fields)
        return found

    def write(self, kept: Mapping[str, Kept]) -> object:
        entries = self.entries()
        step, new = common_count(kept, entries), {}
        for name, parts in entries.items():
            new[name] = self.to_theirs(dict(kept[name].fields), parts)
            check_fields(name, {field: tuple(x.shape) for field, x in parts.items()}, new[name])
        for name, fields in new.items() if any(new.values()) else ():
            place = self.optimizer.state
            for key in name.split("."):
                place = place[int(key) if isinstance(place, list) else key]
            place.update({field: mx.array(x, entries[name][field].dtype) for field, x in fields.items()})
        self.optimizer.state["step"] = mx.array(step, mx.uint64)
        return self.optimizer

    def to_ours(self, fields: Fields) -> Fields:
        """Return the values of our fields."""
        return fields

    def to_theirs(self, fields: Fields, parts: Mapping[str, mx.array]) -> Fields:
        """Return the values of this optimizer's fields, given ours."""
        return fields


class Ours(InTree):
    """An optimizer of `layerwise.mlx`."""

    def __init__(self, optimizer: Any, params: object) -> None:
        super().__init__(optimizer, params)
        self.of = TensorFields.of(optimizer._hyper.optimizer, optimizer._h)

    def entries(self) -> Entries:
        """Return the arrays by name and field, or only the names if the rule keeps nothing."""
        return super().entries() or {name: {} for name in self.optimizer._seen}

    def read(self) -> dict[str, Kept]:
        shapes = self.optimizer._seen
        return {name: one if one.fields else one._replace(shape=shapes[name]) for name, one in super().read().items()}


FACTORED = {"exp_avg_sq_row": -1, "exp_avg_sq_col": -2}  # the dimensions that MLX's lack
MOMENTS = {"exp_avg": "m", "exp_avg_sq": "v"}
FIELDS: Mapping[str, tuple[str, Mapping[str, str]]] = {  # of MLX's own: the rule, and theirs by our names
    "Adam": ("AdamW", MOMENTS),
    "AdamW": ("AdamW", MOMENTS),
    "Lion": ("Lion", {"exp_avg": "m"}),
    "SGD": ("SGD", {"momentum_buffer": "v"}),
    "Muon": ("Muon", {"momentum_buffer": "v"}),
    "Adafactor": ("Adafactor", {name: name for name in (*FACTORED, "exp_avg_sq", "exp_avg")}),
}


class Theirs(InTree):
    """One of MLX's own optimizers."""

    def __init__(self, optimizer: Any, params: object) -> None:
        kinds = [one.__name__ for one in type(optimizer).__mro__]
        kind = kinds[0] if kinds[0] in FIELDS else next((one for one in kinds[1:] if one in FIELDS), None)
        if kind is None or "Adamax" in kinds:
            raise StateError(f"MLX's state of {kinds[0]} cannot be converted. Supported are {', '.join(FIELDS)}.")
        super().__init__(optimizer, params)
        rule, self.called = FIELDS[kind]
        self.of = TensorFields.of(
            rule, {"maximize": False, **({"lr_in_momentum": True} if kind == "Adafactor" else {})}
        )
        self.is_still = kind == "SGD" and not optimizer.momentum

    def to_ours(self, fields: Fields) -> Fields:
        if self.is_still:
            return {}
        found = {name: fields[theirs] for name, theirs in self.called.items() if theirs in fields}
        return {name: np.expand_dims(x, FACTORED[name]) if name in FACTORED else x for name, x in found.items()}

    def to_theirs(self, fields: Fields, parts: Mapping[str, mx.array]) -> Fields:
        if self.is_still and not fields:
            return {field: _numbers(x) for field, x in parts.items()}
        squeezed = {name: np.squeeze(x, FACTORED[name]) if name in FACTORED else x for name, x in fields.items()}
        return {self.called.get(name, name): x for name, x in squeezed.items()}
