"""Unknown keywords: their likely meaning, from other libraries' names or misspellings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

from layerwise.errors import UnknownOptionError

F = TypeVar("F", bound=Callable[..., Any])

# What others call an option, and what it is here: the first that the optimizer takes, with a remark.
MEANT: dict[str, tuple[tuple[str, ...], str]] = {
    "lr": (("learning_rate",), ""),
    "learning_rate": (("lr",), ""),
    "momentum": (("beta1", "betas", "b1"), ""),
    "beta1": (("betas", "b1", "momentum"), "the first"),
    "beta_1": (("betas", "b1", "beta1", "momentum"), "the first of a pair"),
    "b1": (("betas", "beta1", "momentum"), "the first of a pair"),
    "betas": (("b1", "beta1", "momentum"), "the second is b2 in LAMB, beta2 in Adafactor"),
    "beta2": (("betas", "b2"), "the second of a pair"),
    "beta_2": (("beta2", "betas", "b2"), "the second of a pair"),
    "b2": (("beta2", "betas"), "the second of a pair"),
    "decay_rate_fn": (("beta2",), "a function of the step"),
    "beta_2_decay": (("beta2_decay",), ""),
    "decay_rate": (("beta2_decay",), "0.8 there is -0.8 here, which transformers' already is"),
    "beta2_decay": (("decay_rate",), "-0.8 there is 0.8 here"),
    "epsilon": (("eps",), ""),
    "epsilon_1": (("eps",), "eps=(eps1, eps2)"),
    "epsilon_2": (("eps",), "eps=(eps1, eps2)"),
    "eps1": (("eps",), "eps=(eps1, eps2)"),
    "eps2": (("eps",), "eps=(eps1, eps2)"),
    "wd": (("weight_decay", "weight_decay_rate"), ""),
    "weight_decay": (("weight_decay_rate",), ""),
    "weight_decay_rate": (("weight_decay",), ""),
    "lamb_weight_decay": (("weight_decay",), ""),
    "clipping_threshold": (("clip_threshold",), ""),
    "clip_threshold": (("clipping_threshold",), ""),
    "multiply_by_parameter_scale": (("scale_parameter",), ""),
    "scale_parameter": (("multiply_by_parameter_scale",), ""),
    "dtype_momentum": (("momentum_dtype",), ""),
    "momentum_dtype": (("dtype_momentum",), ""),
    "trust_coeff": (("trust_coefficient",), ""),
    "trust_coef": (("trust_coefficient",), ""),
    "eta": (("trust_coefficient",), ""),
    "lars_coeff": (("trust_coefficient",), ""),
    "always_adapt": (("adapt",), 'adapt=True always, adapt="decayed" where weight_decay is not 0'),
    "use_nvlamb": (("adapt",), 'adapt=True always, adapt="decayed" where weight_decay is not 0'),
    "adam_w_mode": (("decay",), 'decay="l2" where it is False'),
    "decoupled_decay": (("decay",), 'decay="decoupled"'),
    "clipnorm": (("max_grad_norm_per_tensor",), ""),
    "clipvalue": (("max_grad_value",), ""),
    "global_clipnorm": (("max_grad_norm",), ""),
    "max_grad_norm": (("global_clipnorm",), ""),
    "max_grad_norm_per_tensor": (("clipnorm",), ""),
    "max_grad_value": (("clipvalue",), ""),
    "grad_clip": (("max_grad_norm",), "max_grad_norm_per_tensor and max_grad_value are the others"),
    "max_norm": (("max_grad_norm",), ""),
    "foreach": (("fused", "engine"), "no foreach is needed: the fastest engine is picked"),
    "fused": (("engine",), 'engine="rule" declines fused kernels'),
    "engine": (("fused",), "fused=False is the rule"),
    "multi_precision": (("master_weights",), ""),
    "mask": (("weight_decay_mask", "decay"), ""),
    "weight_decay_mask": (("mask", "decay"), ""),
    "parameters": (("params",), ""),
}


def explained(function: F) -> F:
    """Return the function with an error for unknown keywords that names what may be meant."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]
    of = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys() <= accepted:
            check_keywords(of, [name for name in kwargs if name not in accepted], known)
        return function(*args, **kwargs)

    accepted = {*known, "self"}
    return checked  # type: ignore[return-value]


def check_keywords(of: str, unknown: Collection[str], known: Collection[str]) -> None:
    """Raise an error for unknown keywords."""
    for name in unknown:
        raise UnknownOptionError(f"{of} has no option {name!r}. {meant(name, known)}")


def nearest(name: object, known: Collection[str], cutoff: float = 0.6) -> list[str]:
    """Return up to three names that are nearly this one, in capital letters or not."""
    by_lower = {one.lower(): one for one in known}
    return [by_lower[one] for one in get_close_matches(str(name).lower(), by_lower, n=3, cutoff=cutoff)]


def meant(name: str, known: Collection[str], cutoff: float = 0.6) -> str:
    """Return a sentence with the likely meaning of a keyword."""
    called, remark = MEANT.get(name, ((), ""))
    close = next(([one] for one in called if one in known), []) or get_close_matches(name, known, n=3, cutoff=cutoff)
    if not close:
        return f"It takes {', '.join(known)}."
    aside = f" ({remark})" if remark and close[0] in called else ""
    return f"Is {' or '.join(f'`{one}`' for one in close)} meant{aside}?"
