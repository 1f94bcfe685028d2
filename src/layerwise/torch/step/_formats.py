"""The storage that a group asks for, and the format that each part of a parameter's state can have."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor

from layerwise import checks
from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.hyper import Hyper
from layerwise.registry import ENTRIES
from layerwise.storage import groups
from layerwise.torch.step._plan import Plan
from layerwise.torch.step._tensors import computing

REMAINDERS: dict[Any, torch.dtype] = {"split": torch.int16, "split24": torch.int8}
DTYPES = checks.dtype("float32", "bfloat16", "int8")
WAY_OUT = 'Pass "float32", "bfloat16" or "int8", or a mapping from names of state to these.'


class Wanted(NamedTuple):
    """The storage that a group asks for, of its weights and of its state."""

    master: bool | str = False
    rounding: str | None = None
    state: Mapping[str, str] = {}  # by field; of those that are missing, as they are
    seed: int = 0

    def words(self) -> dict[str, Any]:
        """Return the same by the names of the options."""
        return dict(zip(NAMES, self, strict=True))


# Found out beforehand, because a tracer of steps would have to read annotations otherwise.
HINTS = {one.rule.__name__: get_type_hints(one.rule.State, include_extras=True) for one in ENTRIES.values()}
PLAIN = Wanted()
NAMES = ("master_weights", "rounding", "state_dtype", "seed")


def _state_dtype(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: None if one is None else DTYPES.convert(one) for key, one in value.items()}
    return None if value is None else DTYPES.convert(value)


MASTERS = checks.one_of(False, True, *REMAINDERS)
ROUNDINGS = checks.one_of(None, "nearest", "stochastic")
STATE = checks.Check(f"{DTYPES.allowed}, a mapping to these by field, or None", _state_dtype)
SEED = checks.integer(0, bits=63)


def wanted(group: Mapping[str, Any], rule: Any) -> Wanted:
    """Return the storage that a group asks for, or raise if there is none such."""
    master, rounding, state, seed = (group[name] for name in NAMES)
    if master is False and rounding is None and state is None and seed == 0:
        return PLAIN
    return _wanted(rule, master, rounding, state, seed)


def _wanted(rule: Any, master: Any, rounding: Any, state: Any, seed: Any) -> Wanted:
    master = MASTERS("master_weights", master, 'Pass True, "split", "split24", or False.')
    rounding = ROUNDINGS("rounding", rounding, 'Pass "stochastic" or "nearest".')
    seed = SEED("seed", seed, "Pass an integer, the same on all processes.")
    asked = STATE("state_dtype", state, WAY_OUT)
    fields = rule.State._fields
    if not isinstance(asked, Mapping):
        return Wanted(master, rounding, {} if asked is None else dict.fromkeys(fields, asked), seed)
    if unknown := asked.keys() - {*fields}:
        names = f"names among {', '.join(fields)}"
        raise HyperparameterError(sentence("state_dtype", names, sorted(map(str, unknown)), WAY_OUT))
    for field, dtype in asked.items():
        if is_statistic(rule, field) and dtype not in (None, "float32"):
            allowed = f"float32 for {field!r}, a mean of rows or columns"
            raise HyperparameterError(sentence("state_dtype", allowed, dtype, "Leave it out: it has few numbers."))
    return Wanted(master, rounding, {key: asked[key] for key in fields if asked.get(key) is not None}, seed)


def as_plain(value: Any) -> Any:
    """Return `state_dtype` as groups keep it: by name, and without the caller's mapping."""
    return STATE("state_dtype", value, WAY_OUT)


def check_fits(want: Wanted, h: Hyper, differentiable: bool) -> None:
    """Raise where storage contradicts another option."""
    for field, dtype in h.state_dtypes().items():
        if want.state.get(field, dtype) != dtype:
            allowed = f"{dtype!r} for {field!r}, as momentum_dtype has it"
            raise ContradictionError(sentence("state_dtype", allowed, want.state[field], "Drop one of them."))
    if differentiable and (want.state or want.rounding == "stochastic"):
        name = "state_dtype" if want.state else "rounding"
        given = dict(want.state) or want.rounding
        raise ContradictionError(sentence(name, "None when differentiable=True", given, "Drop one of them."))


def _says(rule: Any, field: str, what: str) -> bool:
    hints = HINTS.get(rule.__name__) or get_type_hints(rule.State, include_extras=True)
    return what in getattr(hints[field], "__metadata__", ())


def is_signed(rule: Any, field: str) -> bool:
    """Return whether a field of a rule's state may be negative."""
    return not _says(rule, field, "never negative")


def is_statistic(rule: Any, field: str) -> bool:
    """Return whether a field has a number for each row or column, and not for each element."""
    return _says(rule, field, "of rows or columns")


def codes_of(rule: Any, field: str) -> torch.dtype:
    """Return the dtype of 8-bit codes of a field."""
    return torch.int8 if is_signed(rule, field) else torch.uint8


def is_alike(plan: Plan, key: str) -> bool:
    """Return whether a state extends along all dimensions of its parameter."""
    kept = plan.kept.get(key)
    return kept is not None and all(kept)


class Stored(NamedTuple):
    """The dtype, by name, in which a field is stored, and why that is not the one asked for."""

    dtype: str
    why: str = ""
    by_layout: bool = False  # the reason is how the parameter lies


def format_of(plan: Plan, key: str, p: Tensor, want: Wanted) -> Stored:
    """Return in which dtype a field is to be stored."""
    own = str(computing(p.dtype)).removeprefix("torch.")
    settled = plan.h.state_dtypes().get(key)
    asked = settled or want.state.get(key, own)
    if asked in (settled, own):
        return Stored(asked)
    if not is_alike(plan, key):
        return Stored(own, "it has a number for each row or column")
    if asked == "float32":
        return Stored(asked)
    if prod(plan.shape) < groups.LEAST:
        return Stored(own, f"the parameter has fewer than {groups.LEAST} elements")
    why = why_not_grouped(plan) if asked == "int8" else ""
    return Stored(own, why, True) if why else Stored(asked)


def why_not_grouped(plan: Plan) -> str:
    """Return why the state of a parameter cannot be stored in groups, or an empty string."""
    shape, parts = tuple(plan.shape), [one.piece.part for one in plan.held]
    if any(part is not None and part.one is not None and (part.axis > 0 or len(shape) == 1) for part in parts):
        return f"its blocks are stepped one by one and would cut groups of {groups.GROUP} elements"
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
