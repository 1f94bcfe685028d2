"""Hyperparameters as the kernels take them: numbers, with one that does nothing where an option is off."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import fields
from math import inf
from typing import Any

from layerwise.engines import Job
from layerwise.hyper import Bounds
from layerwise.rules.adafactor import Adafactor
from layerwise.rules.lamb import Lamb
from layerwise.rules.lars import Lars

ADAPT = {True: "ALWAYS", False: "NEVER", "decayed": "DECAYED"}
CORRECTION = {True: "CORRECTED", False: "UNCORRECTED", "lr": "CORRECTED_LR"}
DECAY = {"ratio": "IN_RATIO", "decoupled": "DECOUPLED", "l2": "L2"}
DECAY_SCALE = {"lr": "BY_LR", "step": "BY_STEP", "none": "BY_NOTHING"}


# The options that the kernels carry out, by themselves or by what a job's layout, state or `now` makes of them. One
# that is added to a rule is not here, and its jobs are declined, until the kernels know it.
OF_GRADIENT = frozenset({"max_grad_norm", "max_grad_norm_per_tensor", "max_grad_value", "maximize"})
OF_RATIO = frozenset({"adapt", "trust_clip", "zero_norm_ratio", "min_norm", "l2", "eps"})
RATES = frozenset({"lr", "weight_decay"})
OPTIONS: dict[type, frozenset[str]] = {
    Lamb: OF_GRADIENT
    | OF_RATIO
    | RATES
    | {"betas", "eps_root", "bias_correction", "decay", "max_weight_norm", "grad_averaging", "trust_eps"},
    Lars: OF_GRADIENT
    | OF_RATIO
    | RATES
    | {"momentum", "trust_coefficient", "nesterov", "dampening", "norm", "lr_in_momentum"},
    Adafactor: OF_GRADIENT
    | RATES
    | {"eps", "eps_mode", "clip_threshold", "beta2_decay", "beta2", "beta2_cap", "decay_offset", "beta1"}
    | {"momentum_dtype", "lr_in_momentum", "decay_scale", "scale_parameter", "relative_step", "lr_cap"}
    | {"warmup_init", "factored", "min_dim_size_to_factor"},
}


def kind_of(h: Any, known: Collection[type]) -> type | None:
    """Return which of these classes of hyperparameters this is, or is derived from."""
    return next((cls for cls in type(h).__mro__ if cls in known), None)


def missing(job: Job, known: Mapping[type, Collection[str]]) -> str:
    """Return why kernels that know these options do not step a job, or an empty string."""
    kind = kind_of(job.h, known)
    if kind is None:
        return f"there are no kernels for {type(job.h).__name__}"
    if job.rule is not sys.modules[kind.__module__]:  # another formula with the same options
        return f"there are no kernels for {job.rule.__name__}"
    return unknown(job.h, known[kind])


def unknown(h: Any, known: Collection[str]) -> str:
    """Return which option is on that is not among the known ones, in a sentence, or an empty string."""
    for spec in fields(h):
        if spec.name not in known and (value := getattr(h, spec.name)) != spec.default:
            return f"its kernels do not know the option `{spec.name}` of {type(h).__name__}, which is {value!r}"
    return ""


def options_of(native: Any, h: Any) -> Any:
    """Return the extension's options for hyperparameters that are fitted to their tensor."""
    specific: Any = {Lamb: _lamb, Lars: _lars, Adafactor: _adafactor}[kind_of(h, OPTIONS)]  # type: ignore[index]
    made = native.Options()
    for name, value in {**_gradient(h), **specific(native, h)}.items():
        setattr(made, name, value)
    return made


def _gradient(h: Any) -> dict[str, Any]:
    """Return the options that rules share; a rule need not have all of them."""
    low, high = _bounds(getattr(h, "value_bounds", None))
    norms = {name: getattr(h, name, None) or 0.0 for name in ("max_grad_norm", "max_grad_norm_per_tensor")}
    return {"maximize": getattr(h, "maximize", False), "grad_low": low, "grad_high": high, **norms}


def _bounds(bounds: Bounds | None) -> tuple[float, float]:
    low, high = bounds or (None, None)
    return -inf if low is None else low, inf if high is None else high


def _ratio(native: Any, h: Any) -> dict[str, Any]:
    low, high = _bounds(h.trust_clip)
    adapt, shared = getattr(native.Adapt, ADAPT[h.adapt]), ("zero_norm_ratio", "min_norm", "eps", "l2")
    return {"adapt": adapt, "low": low, "high": high, **{name: getattr(h, name) for name in shared}}


def _lamb(native: Any, h: Lamb) -> dict[str, Any]:
    b1, b2 = h.betas
    return {
        "method": native.Method.LAMB,
        **_ratio(native, h),
        "b1": b1,
        "b2": b2,
        "eps_root": h.eps_root,
        "trust_eps": h.trust_eps,
        "max_weight_norm": h.max_weight_norm or 0.0,
        "correction": getattr(native.Correction, CORRECTION[h.bias_correction]),
        "decay": getattr(native.Decay, DECAY[h.decay]),
        "grad_averaging": h.grad_averaging,
    }


def _lars(native: Any, h: Lars) -> dict[str, Any]:
    return {
        "method": native.Method.LARS,
        **_ratio(native, h),
        "momentum": h.momentum,
        "eta": h.trust_coefficient,
        "dampening": h.dampening,
        "nesterov": h.nesterov,
        "norm_decayed": h.norm == "decayed",
        "lr_in_momentum": h.lr_in_momentum,
    }


def _adafactor(native: Any, h: Adafactor) -> dict[str, Any]:
    eps1, eps2 = h.eps
    rows, cols = h.factored or ((), ())
    return {
        "method": native.Method.ADAFACTOR,
        "rows": list(rows),
        "cols": list(cols),
        "eps1": eps1,
        "eps2": eps2,
        "clamp": h.eps_mode == "clamp",
        "clip_threshold": h.clip_threshold or 0.0,
        "beta2_decay": h.beta2_decay,
        "beta2_cap": -1.0 if h.beta2_cap is None else h.beta2_cap,
        "decay_offset": h.decay_offset,
        "beta1": -1.0 if h.beta1 is None else h.beta1,
        "lr_in_momentum": h.lr_in_momentum,
        "decay_scale": getattr(native.DecayScale, DECAY_SCALE[h.decay_scale]),
        "scale_parameter": h.scale_parameter,
        "relative": h.relative_step is not False,
        "lr_caps": h.relative_step == "cap",
        "lr_cap": h.lr_cap,
        "warmup": h.warmup_init,
    }
