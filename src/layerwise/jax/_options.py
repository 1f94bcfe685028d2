"""Options that may be traced: numbers known only when the program runs, and schedules of the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, cast

import jax
import jax.numpy as jnp

from layerwise.errors import HyperparameterError, sentence
from layerwise.jax._types import Array, Dtype
from layerwise.options.checks import number
from layerwise.options.settings import Hyper
from layerwise.options.values import Scalar

# Numbers that determine the form of the state or of the program.
STATIC = ("min_dim_size_to_factor", "iterations", "ns_steps")
# Numbers for which 0 means a state without a buffer. An array counts as traced even if its value is known:
# `inject_hyperparams` creates the state with known arrays, and steps with traced ones.
BUFFERED = ("momentum",)


def is_traced(value: object) -> bool:
    return isinstance(value, jax.core.Tracer)


@dataclass(frozen=True)
class TracedOptions:
    """Checked settings, and the options among them that are traced."""

    h: Hyper
    traced: Mapping[str, Scalar]
    arguments: Mapping[str, str]  # the names of options in this API, if they differ

    def fitted_to(self, dtype: Dtype) -> Hyper:
        """Return the settings with traced numbers in this dtype, which is the tensor's own."""
        return self.h.settled(**{name: jax.tree.map(lambda x: _as(x, dtype), x) for name, x in self.traced.items()})

    def rate(self, name: str, count: Array, dtype: Dtype) -> Array:
        """Return lr or weight decay after `count` steps: a number, or an array of this dtype."""
        value = self.traced.get(name, getattr(self.h, name))
        if callable(value):
            value, argument = _called(value, count), f"{self.arguments.get(name, name)}(count)"
            if not is_traced(value):
                value = number(0)(argument, value, "A schedule must return such a number for every step.")
            else:
                _check_one(argument, value)
        return _as(value, dtype)

    def beta2(self, t: Array, dtype: Dtype) -> Array:
        """Return the decay of the second moment at step t, if it is given as a function or a number."""
        value = _called(self.fitted_to(dtype).beta2_of, t, jnp.maximum)
        _check_one("beta2(count)", value)
        return _as(value, dtype)


def _called(function: Callable[..., Scalar], *arguments: object) -> Scalar:
    """Call a user's function, which must return one number. optax's schedules count in integers or floats."""
    with jax.numpy_dtype_promotion("standard"):
        return function(*arguments)


def _check_one(argument: str, value: object) -> None:
    if isinstance(value, jax.Array) and (value.size != 1 or jnp.iscomplexobj(value)):
        raise HyperparameterError(
            sentence(argument, "one real number", value, "A schedule must return one for every step.")
        )


def _as(value: object, dtype: Dtype) -> Array:
    return value.astype(dtype).reshape(()) if isinstance(value, jax.Array) else value


def options(cls: type[Hyper], given: Mapping[str, object], arguments: Mapping[str, str]) -> TracedOptions:
    """Return the Hyper of the given options; traced numbers are trusted, everything else is checked."""
    traced: dict[str, Scalar] = {}
    checkable: dict[str, Any] = {}
    for spec in fields(cls):
        value = given[spec.name]
        argument = arguments.get(spec.name, spec.name)
        unknown = spec.name in BUFFERED and isinstance(value, jax.Array)
        if unknown or any(map(is_traced, jax.tree.leaves(value))):
            traced[spec.name] = value
            # While everything else is checked, a traced number is replaced by its default, or by a number in every
            # range.
            stand_in = 0.5 if spec.default in (None, MISSING) else spec.default
            value = _stood_in(argument, value, False if spec.name in STATIC else stand_in)
        checkable[spec.name] = cls.check(spec.name, value, argument, arguments)
    make = cast("Callable[..., Hyper]", cls)
    return TracedOptions(make(**checkable), traced, arguments)


def _stood_in(name: str, value: Scalar, stand_in: Scalar) -> Scalar:
    """Return the value with its traced numbers replaced, so that the others can be checked."""
    if isinstance(value, (tuple, list)):
        # One bound may be known; its substitute must be in order with it.
        known = next((one for one in value if not (one is None or is_traced(one))), 0.5)
        stand_ins = stand_in if isinstance(stand_in, tuple) else (known,) * len(value)
        return tuple(_stood_in(name, one, other) for one, other in zip(value, stand_ins, strict=True))
    if not is_traced(value):
        return value
    if isinstance(stand_in, (bool, str)) or value.size != 1 or not jnp.issubdtype(value.dtype, jnp.number):
        raise HyperparameterError(
            sentence(
                name, "known when the step is traced", value, "Under inject_hyperparams, name it among static_args."
            )
        )
    return stand_in
