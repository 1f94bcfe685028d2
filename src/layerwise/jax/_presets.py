"""Presets by the names that the functions here have."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from layerwise import hyper, presets
from layerwise import preset as shared_preset

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
# Options whose default here is optax's: a preset of another implementation says them all.
OF_OPTAX = {
    "Lamb": (),
    "Lars": ("norm",),
    "Adafactor": ("scale_parameter", "relative_step", "decay_scale", "factored", "min_dim_size_to_factor"),
}


def preset(name: str) -> dict[str, Any]:
    """Keyword arguments for lamb, lars or adafactor: `lamb(1e-3, **preset("apex.FusedLAMB"))`.

    To change one of them: `{**preset("apex.FusedLAMB"), "weight_decay": 0.1}`.

    >>> preset("timm.Lars")["norm"]
    'split'
    """
    said = shared_preset(name)
    optimizer = next(one.optimizer for one in presets() if one.name == name)
    defaults = {spec.name: spec.default for spec in fields(getattr(hyper, optimizer))}
    made = {**{option: defaults[option] for option in OF_OPTAX[optimizer]}, **said}
    return {NAMES[optimizer].get(option, option): value for option, value in made.items()}
