"""Options made from optax's arguments, which have other names and sometimes another form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from layerwise.checks import number
from layerwise.errors import ContradictionError, sentence
from layerwise.hyper import Hyper
from layerwise.jax._options import is_traced
from layerwise.rules.adafactor import EPS1, Adafactor
from layerwise.spelling import OPTAX, is_pair, pair


def options(h: type[Hyper], given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a rule, by their own names, for these arguments."""
    found = {
        option: pair(h, option, names, given, is_traced) if is_pair(names) else given[names[0]]
        for option, names in OPTAX.of(h).items()
    }
    adjusted = ADJUSTED[h.optimizer](given) if h.optimizer in ADJUSTED else {}
    return {**given, **found, **adjusted}


def _lars(given: dict[str, Any]) -> dict[str, Any]:
    momentum, nesterov = given["momentum"], given["nesterov"]
    still = nesterov is True and not is_traced(momentum) and momentum in (0, None)
    return {"nesterov": False if still else nesterov}  # without momentum it is the same, and optax allows it


def _sgd(given: dict[str, Any]) -> dict[str, Any]:
    momentum = 0.0 if given["momentum"] is None else given["momentum"]
    none = not is_traced(momentum) and momentum == 0
    stored = None if none else _dtype_name(given["accumulator_dtype"], "accumulator_dtype")
    return {**_lars(given), "momentum": momentum, "momentum_dtype": stored}


def _adamw(given: dict[str, Any]) -> dict[str, Any]:
    return {"momentum_dtype": _dtype_name(given["mu_dtype"], "mu_dtype")}


def _adafactor(given: dict[str, Any]) -> dict[str, Any]:
    lr, relative = given["learning_rate"], given["relative_step"]
    if lr is not None and relative is True:
        way_out = 'Drop one, or say what it is: relative_step="cap" bounds the step by it, "factor" scales it.'
        raise ContradictionError(sentence("learning_rate", "None when relative_step=True", lr, way_out))
    eps, decay, factored = given["eps"], given["weight_decay_rate"], given["factored"]
    return {
        "lr": 1.0 if lr is None and relative is False else lr,
        "beta2_decay": _negative("decay_rate", given["decay_rate"]),
        "momentum_dtype": None if given["momentum"] is None else _dtype_name(given["dtype_momentum"], "dtype_momentum"),
        "weight_decay": 0.0 if decay is None else decay,
        "eps": eps if isinstance(eps, (tuple, list)) else (_eps1(eps), 1e-3),
        "factored": "largest" if factored is True else factored,
    }


def _eps1(value: Any) -> Any:
    return value if is_traced(value) else EPS1("eps", value, "Pass a number such as eps=1e-30, or (eps1, eps2).")


def _negative(argument: str, value: Any) -> Any:
    return (
        -value if is_traced(value) else -number(0)(argument, value, "Pass a number such as 0.8; 1 − t^−0.8 is beta2.")
    )


def _dtype_name(dtype: Any, argument: str) -> Any:
    # inject_hyperparams takes a dtype for a schedule, because it can be called, and hands over what it returned.
    return Adafactor.check("momentum_dtype", getattr(dtype, "dtype", dtype), argument)


ADJUSTED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "Adafactor": _adafactor,
    "AdamW": _adamw,
    "Lars": _lars,
    "SGD": _sgd,
}
