"""A transformation made of the arguments of a generated function."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import optax

from layerwise.checks import FLAG
from layerwise.errors import ContradictionError, sentence
from layerwise.hyper import Hyper
from layerwise.jax import _optax
from layerwise.jax._mesh import as_mesh
from layerwise.jax._options import options
from layerwise.jax._transform import Mask, Transformation

Rate = float | jax.Array | Callable[[Any], Any]
Number = float | jax.Array
ByLeaf = Any  # a tree like the parameters, a prefix of it, or a callable of the parameters that returns one
"""The type of `mask`, `trust_ratio_mask`, `blocks` and `specs`."""
MASKS = ("mask", "weight_decay_mask")  # the two names that optax has for one thing


def make(
    rule: ModuleType, h: type[Hyper], state: type[Any], given: dict[str, Any]
) -> optax.GradientTransformationExtraArgs:
    """Return the transformation that `given`, every argument by its name, asks for."""
    checked = options(h, _optax.options(h, given), _optax.in_messages(h))
    ratio_mask, blocks = given.get("trust_ratio_mask"), given["blocks"]
    if given.get("adapt") is False and not (ratio_mask is None or ratio_mask is True):
        raise ContradictionError(
            sentence("trust_ratio_mask", "None when adapt=False", ratio_mask, "The mask alone says it all.")
        )
    mask = next(Mask(name, True if given[name] is None else given[name]) for name in MASKS if name in given)
    return Transformation(
        rule=rule,
        state=state,
        options=checked,
        decay_mask=mask,
        ratio_mask=True if ratio_mask is None else ratio_mask,
        blocks=blocks,
        stats=FLAG("stats", given["stats"], "Pass True or False."),
        mesh=as_mesh(given["axis_name"], given["specs"], _needs_specs(checked.h, blocks)),
    ).as_optax()


def _needs_specs(h: Any, blocks: Any) -> str | None:
    """Return what cannot be cut without knowing which dimension is cut."""
    if getattr(h, "factored", False) is not False:
        return "factored statistics"
    return None if blocks is None else "blocks"
