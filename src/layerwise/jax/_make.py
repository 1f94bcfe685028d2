"""A transformation made from the arguments of a generated function."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import optax

from layerwise.checks import FLAG
from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.hyper import Hyper
from layerwise.jax import _optax
from layerwise.jax._mesh import as_mesh
from layerwise.jax._options import is_traced, options
from layerwise.jax._transform import Transformation
from layerwise.registry import ENTRIES
from layerwise.spelling import OPTAX
from layerwise.storage.options import OPTIONS, Wanted, check_fits, wanted

Rate = float | jax.Array | Callable[[Any], Any]
"""A number, also a traced one, or a schedule: a function of the count of steps taken, as in optax."""
Number = float | jax.Array
"""A number, also a traced one."""
ByLeaf = Any
"""A value for every parameter, a tree of values like the parameters, a prefix of it, or a function of the parameters
that returns one."""
MASKS = ("mask", "weight_decay_mask")  # the two names that optax has for one thing


def make(name: str, state: type[Any], given: dict[str, Any]) -> optax.GradientTransformationExtraArgs:
    """Return the transformation of the rule of this name for `given`, every argument by its own."""
    _, rule, h = ENTRIES[name]
    checked = options(h, _optax.options(h, given), OPTAX.in_messages(h))
    ratio_mask = given.get("trust_ratio_mask")
    if given.get("adapt") is False and not (ratio_mask is None or ratio_mask is True):
        raise ContradictionError(
            sentence("trust_ratio_mask", "None when adapt=False", ratio_mask, "Pass adapt=True, or no mask.")
        )
    mask = next((name, True if given[name] is None else given[name]) for name in MASKS if name in given)
    made = Transformation(
        rule=rule,
        state=state,
        options=checked,
        decay_mask=mask,
        ratio_mask=True if ratio_mask is None else ratio_mask,
        blocks=given["blocks"],
        stats=FLAG("stats", given["stats"], "Pass True or False."),
        mesh=as_mesh(given["axis_name"], given["specs"]),
        want=_wanted(rule, checked.h, given),
    )
    return optax.GradientTransformationExtraArgs(made.init, made.update)


def _wanted(rule: ModuleType, h: Hyper, given: dict[str, Any]) -> Wanted:
    """Return the wanted storage of weights and state."""
    if is_traced(given["seed"]):
        way_out = "With inject_hyperparams, name it among static_args."
        raise HyperparameterError(sentence("seed", "known when the step is traced", given["seed"], way_out))
    # inject_hyperparams takes a dtype for a schedule, because it can be called, and hands over what it returned.
    dtype = given["state_dtype"]
    stored = {"state_dtype": dtype.dtype.name if isinstance(dtype, jax.Array) else dtype, "seed": given["seed"] or 0}
    want = wanted({name: given[name] for name in OPTIONS} | stored, rule)
    # float32 is what optax's argument is where nothing was said.
    if any(dtype != "float32" for dtype in h.state_dtypes().values()):
        check_fits(want, h, "dtype_momentum")
    return want
