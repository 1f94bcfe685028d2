"""Presets with the argument names of this API."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import optax

from layerwise.catalog.presets import arguments_by_name, find_preset
from layerwise.catalog.registry import ENTRIES
from layerwise.jax import optimizers
from layerwise.options.arguments import OWN_FORM
from layerwise.options.names import OPTAX, optax_defaults
from layerwise.options.settings import Hyper


def preset(name: str, /, **overrides: object) -> dict[str, Any]:
    """Return keyword arguments for the function of a preset: `lamb(1e-3, **preset("apex.FusedLAMB"))`.

    `like("apex.FusedLAMB", 1e-3)` does the same, and also takes arguments.

    Args:
        name: The name of the preset.
        **overrides: Arguments that replace the preset's, or are added to them. The function checks them.

    >>> preset("timm.Lars", momentum=0.9)["momentum"]
    0.9
    """
    one = find_preset(name)
    h = ENTRIES[one.optimizer].hyper
    theirs = {
        **OPTAX.as_arguments(h, optax_defaults(h)),
        **_defaults_of_others(h),
        **OPTAX.as_arguments(h, one.options),
    }
    return {**theirs, **overrides}


def like(name: str, /, *args: object, **options: object) -> optax.GradientTransformationExtraArgs:
    """Return a transformation that is equal to another implementation: `like("timm.Lamb", 1e-3, weight_decay=0.1)`.

    Args:
        name: The name of a preset.
        *args: Arguments of the preset's function, such as `lamb`.
        **options: Arguments of that function, in place of the preset's or besides them.
    """
    make = getattr(optimizers, find_preset(name).optimizer.lower())
    unnamed, given = arguments_by_name(make, args, options)
    made: optax.GradientTransformationExtraArgs = make(*unnamed, **{**preset(name), **given})
    return made


def _defaults_of_others(h: type[Hyper]) -> dict[str, Any]:
    """Return the defaults of the other APIs, if optax's, which this function has, differ."""
    here = inspect.signature(getattr(optimizers, h.__name__.lower())).parameters
    special = {"learning_rate", *(one.name for one in OWN_FORM.get(h.__name__, ()))}
    theirs = OPTAX.as_arguments(h, {one.name: one.default for one in fields(h)})
    return {
        name: value
        for name, value in theirs.items()
        if name in here and name not in special and here[name].default != value
    }
