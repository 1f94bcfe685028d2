"""States of `layerwise.keras`, and of Keras's own optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import keras
import numpy as np
from keras import backend, ops

from layerwise.convert._kept import Fields, Kept, TensorFields, check_fields, common_count, numbers_of
from layerwise.errors import StateError
from layerwise.rules.requests import Array

Parts = dict[str, keras.Variable]  # Keras's variables by field


def _numbers(variable: keras.Variable) -> np.ndarray:
    x = ops.convert_to_tensor(variable)
    return numbers_of(ops.convert_to_numpy(x if _dtype(x) == "float64" else ops.cast(x, "float32")))


def _dtype(x: Array) -> str:
    return str(backend.standardize_dtype(x.dtype))


class Built:
    """An optimizer whose state exists."""

    def __init__(self, optimizer: keras.optimizers.Optimizer, params: object) -> None:
        if not optimizer.built:
            raise StateError("the optimizer has no variables yet. Call optimizer.build(model.trainable_variables).")
        self.optimizer = optimizer

    def tensors(self) -> Iterator[tuple[keras.Variable, TensorFields, Parts]]:
        """Yield each variable, the optimizer that steps it, and the variables of its state."""
        raise NotImplementedError

    def wanted(self) -> dict[str, TensorFields]:
        return {variable.path: wanted for variable, wanted, _ in self.tensors()}

    def read(self) -> dict[str, Kept]:
        step = int(ops.convert_to_numpy(ops.convert_to_tensor(self.optimizer.iterations)))
        found = {}
        for variable, wanted, parts in self.tensors() if step else ():
            fields = self.to_ours(wanted.rule, {field: _numbers(x) for field, x in parts.items()})
            found[variable.path] = wanted.kept(step, tuple(variable.shape), fields)
        return found

    def write(self, kept: Mapping[str, Kept]) -> object:
        step, new = common_count(kept, self.wanted()), []
        for variable, wanted, parts in self.tensors():
            fields = self.to_theirs(wanted.rule, dict(kept[variable.path].fields))
            check_fields(variable.path, {field: tuple(x.shape) for field, x in parts.items()}, fields)
            new += [(x, fields[field]) for field, x in parts.items()]
        for x, numbers in new:
            x.assign(ops.cast(numbers, x.dtype))
        self.optimizer._iterations.assign(step * (self.optimizer.gradient_accumulation_steps or 1))
        return self.optimizer

    def to_ours(self, rule: str, fields: Fields) -> Fields:
        """Return the values of our fields."""
        return fields

    def to_theirs(self, rule: str, fields: Fields) -> Fields:
        """Return the values of this optimizer's fields."""
        return fields


class Ours(Built):
    """An optimizer of `layerwise.keras`."""

    def tensors(self) -> Iterator[tuple[keras.Variable, TensorFields, Parts]]:
        opt = self.optimizer
        for i, variable in enumerate(opt._trainable_variables):
            rule, piece = opt._rule_of(opt._is_rest[i]), opt._pieces[i]
            state = zip(rule.State._fields, opt._kept[i], strict=True)
            parts = {field: x for field, x in state if x is not None}
            name = "AdamW" if opt._is_rest[i] else opt._hyper.optimizer
            yield variable, TensorFields.of(name, piece.h), parts


PLAIN = {"grad_averaging": True, "maximize": False}  # the options that our optimizer would have
MOMENTS = {"exp_avg": "_momentums", "exp_avg_sq": "_velocities"}
FIELDS = {  # for Keras's own optimizers: the rule, and the lists of variables
    "Adam": ("AdamW", MOMENTS),
    "AdamW": ("AdamW", MOMENTS),
    "Lamb": ("Lamb", MOMENTS),
    "Lion": ("Lion", {"exp_avg": "_momentums"}),
    "SGD": ("SGD", {"momentum_buffer": "momentums"}),
    "Muon": ("Muon", {"momentum_buffer": "momentums"}),
    "Adafactor": ("Adafactor", {"exp_avg_sq_row": "_r", "exp_avg_sq_col": "_c", "exp_avg_sq": "_v"}),
}


class Theirs(Built):
    """One of Keras's own optimizers."""

    def __init__(self, optimizer: object, params: object) -> None:
        kinds = [one.__name__ for one in type(optimizer).__mro__ if one.__name__ in FIELDS]
        if not kinds or getattr(optimizer, "amsgrad", False):
            what = "amsgrad, whose maximum no layerwise optimizer keeps," if kinds else type(optimizer).__name__
            raise StateError(f"Keras's state of {what} cannot be converted. Supported are {', '.join(FIELDS)}.")
        super().__init__(optimizer, params)
        self.kind = kinds[0]

    def tensors(self) -> Iterator[tuple[keras.Variable, TensorFields, Parts]]:
        rule, lists = FIELDS[self.kind]
        for i, variable in enumerate(self.optimizer._trainable_variables):
            parts = {field: x[i] for field, name in lists.items() if (x := getattr(self.optimizer, name))}
            if self.kind == "Adafactor":
                parts = {key: x for key, x in parts.items() if (key == "exp_avg_sq") == (len(variable.shape) < 2)}
            velocity = self.optimizer.adam_velocities[i] if self.kind == "Muon" else None
            if velocity is not None:
                yield (
                    variable,
                    TensorFields.of("AdamW", PLAIN),
                    {"exp_avg": parts["momentum_buffer"], "exp_avg_sq": velocity},
                )
            else:
                yield variable, TensorFields.of(rule, PLAIN), parts

    def to_ours(self, rule: str, fields: Fields) -> Fields:
        return {field: self._changed(rule, field, x, 1) for field, x in fields.items()}

    def to_theirs(self, rule: str, fields: Fields) -> Fields:
        return {field: self._changed(rule, field, x, -1) for field, x in fields.items()}

    def _changed(self, rule: str, field: str, x: Array, way: int) -> Array:
        """Convert a field from Keras to ours, or with way −1 from ours to Keras."""
        if field in ("exp_avg_sq_row", "exp_avg_sq_col"):  # Keras's lack the averaged dimension
            d = -1 if field.endswith("_row") else -2
            return np.expand_dims(x, d) if way == 1 else np.squeeze(x, d)
        if field != "momentum_buffer":
            return x
        if rule == "Muon":  # Keras has a sum, we have a mean
            return x * np.float32(1 - self.optimizer.momentum) ** way
        lr = float(_numbers(self.optimizer.learning_rate))  # Keras's contains −lr
        if not lr:
            raise StateError(
                "Keras's SGD includes the learning rate in its momentum, but the rate is 0. Set another rate."
            )
        return x * (-lr) ** -way
