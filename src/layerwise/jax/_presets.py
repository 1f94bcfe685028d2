"""Presets by the names that the functions here have."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

from layerwise import hyper
from layerwise.jax._options import is_traced
from layerwise.keywords import check_keywords
from layerwise.presets import find

# What an option is called here, where that is not its own name.
NAMES = {
    "Lamb": {"lr": "learning_rate"},
    "Lars": {"lr": "learning_rate"},
    "Adafactor": {
        "lr": "learning_rate",
        "scale_parameter": "multiply_by_parameter_scale",
        "clip_threshold": "clipping_threshold",
        "beta1": "momentum",
        "momentum_dtype": "dtype_momentum",
        "weight_decay": "weight_decay_rate",
    },
}
OWN_FORM = {"Adafactor": ("eps", "factored", "weight_decay_rate")}  # arguments that take more here than the option
# Options whose default here is optax's: a preset of another implementation says them all.
OF_OPTAX = {
    "Lamb": (),
    "Lars": ("norm",),
    "Adafactor": ("scale_parameter", "relative_step", "decay_scale", "factored", "min_dim_size_to_factor"),
}


def preset(name: str, /, **overrides: Any) -> dict[str, Any]:
    """Keyword arguments for lamb, lars or adafactor: `lamb(1e-3, **preset("apex.FusedLAMB"))`.

    `overrides` are arguments in place of the preset's, or besides them.

    >>> preset("timm.Lars", momentum=0.9)["momentum"]
    0.9
    """
    one = find(name)
    defaults = {spec.name: spec.default for spec in fields(getattr(hyper, one.optimizer))}
    made = {**{option: defaults[option] for option in OF_OPTAX[one.optimizer]}, **one.options}
    here = NAMES[one.optimizer]
    _check(one.optimizer, overrides)
    return {**{here.get(option, option): value for option, value in made.items()}, **overrides}


def _check(optimizer: str, overrides: dict[str, Any]) -> None:
    """Raise unless these are arguments of the function, with values that it takes."""
    from layerwise import jax as front

    known = list(inspect.signature(getattr(front, optimizer.lower())).parameters)
    check_keywords(optimizer.lower(), [name for name in overrides if name not in known], known)
    settings: Any = getattr(hyper, optimizer)
    own = {spec.name for spec in fields(settings)}
    options = {argument: option for option, argument in NAMES[optimizer].items()}
    for argument, value in overrides.items():
        option = options.get(argument, argument)
        # What has no option of its name, or another form here, the function checks itself.
        if option in own and argument not in OWN_FORM.get(optimizer, ()) and not is_traced(value):
            settings.check(option, value, argument, NAMES[optimizer])
