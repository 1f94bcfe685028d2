"""A transformation, created from the arguments of a generated function."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import optax

from layerwise.catalog.registry import ENTRIES
from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.jax._mesh import axes_of
from layerwise.jax._options import is_traced, options
from layerwise.jax._transform import Transformation
from layerwise.jax._types import Dtype, Tree
from layerwise.options.checks import Check, flag, number
from layerwise.options.names import OPTAX, checked_pair, is_pair
from layerwise.options.settings import Hyper
from layerwise.options.values import Scalar
from layerwise.rules.adafactor import EPS1, Adafactor
from layerwise.storage.options import OPTIONS, RequestedStorage, check_fits, requested_storage

Rate = float | jax.Array | Callable[[Any], Any]
"""A number, also a traced one, or a schedule: a function of the count of steps taken, as in optax."""
Number = float | jax.Array
"""A number, possibly traced."""
ByLeaf = Tree
"""A value for every parameter, a tree of values like the parameters, a prefix of such a tree, or a function of the
parameters that returns one.
"""
OF_EPS = "Pass a number such as eps=1e-30, or (eps1, eps2)."
OF_RATE = "Pass a number such as 0.8; 1 − t^−0.8 is beta2."


def make(name: str, state: type, given: dict[str, Any]) -> optax.GradientTransformationExtraArgs:
    """Return the transformation of the rule of this name; `given` has every argument by name."""
    _, rule, h = ENTRIES[name]
    checked = options(h, _by_option(h, given), OPTAX.in_messages(h))
    ratio_mask = given.get("trust_ratio_mask")
    if given.get("adapt") is False and not (ratio_mask is None or ratio_mask is True):
        raise ContradictionError(
            sentence("trust_ratio_mask", "None when adapt=False", ratio_mask, "Pass adapt=True, or no mask.")
        )
    stats, axes = flag("stats", given["stats"]), axes_of(given["axis_name"], given["specs"])
    made = Transformation(rule, state, checked, _wanted(rule, checked.h, given), stats, axes, given)
    return optax.GradientTransformationExtraArgs(made.init, made.update)


def _wanted(rule: ModuleType, h: Hyper, given: dict[str, Any]) -> RequestedStorage:
    if is_traced(given["seed"]):
        way_out = "Under inject_hyperparams, name it among static_args."
        raise HyperparameterError(sentence("seed", "known when the step is traced", given["seed"], way_out))
    # inject_hyperparams takes a dtype for a schedule, because it is callable, and passes the dtype's result.
    dtype = given["state_dtype"]
    stored = {"state_dtype": dtype.dtype.name if isinstance(dtype, jax.Array) else dtype, "seed": given["seed"] or 0}
    want = requested_storage({name: given[name] for name in OPTIONS} | stored, rule)
    # optax's argument is float32 by default.
    if any(dtype != "float32" for dtype in h.state_dtypes().values()):
        check_fits(want, h, "dtype_momentum")
    return want


# ---- arguments of optax with another name or form


def _by_option(h: type[Hyper], given: dict[str, Any]) -> dict[str, object]:
    """Return the options of a rule, by their own names, from optax's arguments, which may have another form."""
    found = {
        option: checked_pair(h, option, names, given, is_traced) if is_pair(names) else given[names[0]]
        for option, names in OPTAX.renamed_options(h).items()
    }
    adjusted = ADJUSTED[h.optimizer](given) if h.optimizer in ADJUSTED else {}
    return {**given, **found, **adjusted}


def _lars(given: dict[str, Any]) -> dict[str, object]:
    momentum, nesterov = given["momentum"], given["nesterov"]
    still = nesterov is True and not is_traced(momentum) and momentum in (0, None)
    return {"nesterov": False if still else nesterov}  # without momentum both are the same, and optax allows it


def _sgd(given: dict[str, Any]) -> dict[str, object]:
    momentum = 0.0 if given["momentum"] is None else given["momentum"]
    none = not is_traced(momentum) and momentum == 0
    stored = None if none else _dtype_name(given["accumulator_dtype"], "accumulator_dtype")
    return {**_lars(given), "momentum": momentum, "momentum_dtype": stored}


def _adamw(given: dict[str, Any]) -> dict[str, object]:
    return {"momentum_dtype": _dtype_name(given["mu_dtype"], "mu_dtype")}


def _adafactor(given: dict[str, Any]) -> dict[str, object]:
    lr, relative = given["learning_rate"], given["relative_step"]
    if lr is not None and relative is True:
        way_out = (
            'Drop one, or choose what lr means: relative_step="cap" bounds the step by it, "factor" scales the step '
            "by it."
        )
        raise ContradictionError(sentence("learning_rate", "None when relative_step=True", lr, way_out))
    eps, decay, factored = given["eps"], given["weight_decay_rate"], given["factored"]
    return {
        "lr": 1.0 if lr is None and relative is False else lr,
        "beta2_decay": -_checked(number(0), "decay_rate", given["decay_rate"], OF_RATE),
        "momentum_dtype": None if given["momentum"] is None else _dtype_name(given["dtype_momentum"], "dtype_momentum"),
        "weight_decay": 0.0 if decay is None else decay,
        "eps": eps if isinstance(eps, (tuple, list)) else (_checked(EPS1, "eps", eps, OF_EPS), 1e-3),
        "factored": "largest" if factored is True else factored,
    }


def _checked(check: Check, argument: str, value: object, way_out: str) -> Scalar:
    return value if is_traced(value) else check(argument, value, way_out)


def _dtype_name(dtype: Dtype, argument: str) -> object:
    # inject_hyperparams takes a dtype for a schedule, because it is callable, and passes the dtype's result.
    return Adafactor.check("momentum_dtype", getattr(dtype, "dtype", dtype), argument)


ADJUSTED: dict[str, Callable[[dict[str, Any]], dict[str, object]]] = {
    "Adafactor": _adafactor,
    "AdamW": _adamw,
    "Lars": _lars,
    "SGD": _sgd,
}
