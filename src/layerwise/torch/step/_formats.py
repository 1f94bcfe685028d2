"""The possible formats of each part of a parameter's state in PyTorch, where parameters are cut."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from layerwise.errors import ContradictionError, sentence
from layerwise.storage import groups
from layerwise.storage.forms import CUT_BY_BLOCKS, Chosen, Field, blocks_cut_groups, chosen
from layerwise.storage.options import STATE, WAY_OUT, Wanted, is_signed
from layerwise.torch.sharding._flat import Flat
from layerwise.torch.step._plan import Plan
from layerwise.torch.step._tensors import computing

REMAINDERS: dict[Any, torch.dtype] = {"split": torch.int16, "split24": torch.int8}


def as_plain(value: Any) -> Any:
    """Return `state_dtype` in the form that groups keep: by name, and without the caller's mapping."""
    return STATE("state_dtype", value, WAY_OUT)


def check_followed(want: Wanted, differentiable: bool) -> None:
    """Raise if autograd is to follow a step that rounds at random, or in groups."""
    if differentiable and (want.state or want.rounding == "stochastic"):
        name = "state_dtype" if want.state else "rounding"
        given = dict(want.state) or want.rounding
        raise ContradictionError(sentence(name, "None when differentiable=True", given, "Drop one of them."))


def codes_of(rule: Any, field: str) -> torch.dtype:
    """Return the dtype of 8-bit codes of a field."""
    return torch.int8 if is_signed(rule, field) else torch.uint8


def is_alike(plan: Plan, key: str) -> bool:
    """Return True if a state has a number for each element of its parameter."""
    return plan.elementwise.get(key, False)


def named(dtype: torch.dtype) -> str:
    """Return the name of a dtype."""
    return str(dtype).removeprefix("torch.")


def format_of(plan: Plan, key: str, p: Tensor, want: Wanted) -> Chosen:
    """Return the dtype that stores a field."""
    settled = plan.h.state_dtypes().get(key)
    field = Field(key, named(computing(p.dtype)), settled, is_alike(plan, key), plan.smallest)
    return chosen(field, want, partial(why_not_grouped, plan))


def why_not_grouped(plan: Plan) -> str:
    """Return the reason why the state of a parameter cannot be stored in groups, or an empty string."""
    shape = tuple(plan.shape)
    if isinstance(plan.lies, Flat):
        return "stretches of a flat buffer begin and end within groups"
    if blocks_cut_groups(shape, [one.piece.part for one in plan.held]):
        return CUT_BY_BLOCKS
    cuts: dict[int, int] = {}
    for axis, d in () if plan.cut is None else plan.cut.axes:
        cuts[d] = cuts.get(d, 1) * len(axis.ranks)
    scattered = plan.cut is not None and any(hasattr(x, "split_factor") for x in plan.cut.placements)
    for d, n in cuts.items():
        rows = d == 0 and len(shape) > 1
        row = prod(shape[1:]) if len(shape) > 1 else shape[0]
        even = d <= 1 and not scattered and shape[d] % n == 0 and row // n % groups.GROUP == 0
        if not rows and not even:
            return f"its cut along dimension {d} over {n} processes would cut groups of {groups.GROUP} elements"
    return ""
