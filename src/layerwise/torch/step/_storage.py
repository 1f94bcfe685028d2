"""The storage of one parameter's weights and state: making it, converting it, and handing it to engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from layerwise.storage import WEIGHTS, Format, Storage, groups
from layerwise.storage.bits import key_of
from layerwise.storage.index import Index, index_of, part_of
from layerwise.storage.stored import Stored
from layerwise.torch.checkpoints._forms import without_wrappers
from layerwise.torch.sharding._cuts import Held, like, local
from layerwise.torch.step._formats import (
    REMAINDERS,
    Wanted,
    check_fits,
    codes_of,
    format_of,
    is_alike,
    is_signed,
    wanted,
)
from layerwise.torch.step._namespace import BITS
from layerwise.torch.step._plan import Plan
from layerwise.torch.step._tensors import LOW, computing

__all__ = ["REMAINDERS", "Wanted", "check_fits", "wanted"]  # and what is here

State = dict[str, Any]
MASTER, REMAINDER, SCALE = "master", "remainder", "_scale"
CODES = (torch.int8, torch.uint8)


def is_group(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in CODES


# ---- making and converting


def scales_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the scales of a tensor's groups: of each row, or of a vector itself."""
    if len(shape) == 1:
        return (groups.count(shape[0]),)
    return shape[0], groups.count(prod(shape[1:]))


def made(plan: Plan, rule: Any, key: str, p: Tensor, dtype: str) -> State:
    """Return a field as it is at the start, with its scales."""
    if dtype != "int8":
        return {key: plan.zeros(key, p, getattr(torch, dtype))}
    whole, here = scales_of(tuple(plan.shape)), scales_of(tuple(local(p).shape))
    scale = torch.zeros(here, dtype=torch.float32, device=p.device)
    if plan.cut is not None:
        scale = plan.cut.wrapped(scale, whole, tuple(d < len(whole) for d in range(len(plan.shape))))
    return {key: plan.zeros(key, p, codes_of(rule, key)), key + SCALE: scale}


def as_numbers(state: Mapping[str, Any], key: str, signed: bool) -> Tensor:
    """Return a field in floating point: itself, or the numbers of its groups."""
    value: Tensor = state[key]
    if not is_group(value):
        return value
    found: Tensor = like(value, _whole(local(value), Format(local(state[key + SCALE]), None, signed)).read())
    return found


def _whole(array: Tensor, form: Format) -> Stored:
    return Stored(array, form, index_of(tuple(array.shape)), min(1, array.ndim - 1), BITS)


def put_state_in_form(state: State, plan: Plan, rule: Any, p: Tensor, want: Wanted) -> None:
    """Make what of a parameter's state is not there yet, and convert what is stored in another form than is wanted."""
    for key, shape in plan.state_shapes.items():
        if shape is None:
            continue
        if key not in state:
            state.update(made(plan, rule, key, p, format_of(plan, key, p, want).dtype))
        elif key in want.state:
            _convert(state, plan, rule, key, p, format_of(plan, key, p, want).dtype)


def _convert(state: State, plan: Plan, rule: Any, key: str, p: Tensor, dtype: str) -> None:
    before: Tensor = state[key]
    if dtype == ("int8" if is_group(before) else _name(before.dtype)):
        return
    numbers = local(as_numbers(state, key, is_signed(rule, key)))
    found = made(plan, rule, key, p, dtype)
    here = local(found[key])
    if is_group(here):
        scale = local(found[key + SCALE])
        codes, scales = _whole(here, Format(scale, None, is_signed(rule, key))).encode(numbers, 0)
        here.copy_(codes)
        scale.copy_(scales)
    else:
        here.copy_(numbers)
    state.pop(key + SCALE, None)
    state.update(found)


def full_weight(p: Tensor, state: Mapping[str, Any]) -> Tensor:
    """Return a parameter's weights as precisely as they are held: its masters, or with its remainder, or itself."""
    if MASTER in state:
        master: Tensor = state[MASTER].detach().clone()
        return master
    if REMAINDER not in state:
        return p.detach().to(computing(p.dtype), copy=True)
    joined: Tensor = like(p.detach(), _whole(local(p.detach()), Format(local(state[REMAINDER]))).read())
    return joined


def set_full_weight(p: Tensor, state: State, full: Tensor) -> None:
    """Set a parameter's weights, and what is held beside them, to numbers of float32."""
    here = local(p.detach())
    if MASTER in state:
        local(state[MASTER]).copy_(local(full))
    if REMAINDER in state:
        rest = local(state[REMAINDER])
        weights, lacking = _whole(here, Format(rest)).encode(local(full), 0)
        here.copy_(weights)
        rest.copy_(lacking)
    else:
        here.copy_(local(full))


def put_weights_in_form(state: State, p: Tensor, master: bool | str) -> None:
    """Hold as much of a parameter's weights as is wanted; what was held before is not lost on the way.

    Only where a step is about to be taken: before, the weights of the model may not have been loaded yet, and a
    remainder says something of these alone.
    """
    kind: Any = master if p.dtype in LOW else False
    rest = state.get(REMAINDER)
    if (MASTER in state) == (kind is True) and (None if rest is None else rest.dtype) == REMAINDERS.get(kind):
        return
    full = full_weight(p, state)
    state.pop(MASTER, None)
    state.pop(REMAINDER, None)
    if kind is True:
        state[MASTER] = full
        return
    if kind:
        zeros = torch.zeros_like(local(p), dtype=REMAINDERS[kind], memory_format=torch.preserve_format)
        state[REMAINDER] = like(p.detach(), zeros)
    set_full_weight(p, state, full)


class Remainders:
    """The remainders of split weights, some of which belong to weights that have been written to since."""

    def __init__(self, heres: Sequence[Tensor], states: Sequence[Mapping[str, Any]]) -> None:
        pairs = [(p, local(one[REMAINDER])) for p, one in zip(heres, states, strict=True) if REMAINDER in one]
        self._pairs, self._versions = pairs, [-1] * len(pairs)

    def follow(self) -> None:
        """Let weights that were set to zero be zero.

        Beside any other number a remainder of another one says less than the weight's last place does. Beside zero it
        would be the weight, and its norm is what a step is measured by.
        """
        for (p, rest), version in zip(self._pairs, self._versions, strict=True):
            if p._version != version:
                rest.masked_fill_(p == 0, 0)

    def written(self) -> None:
        """Remember that what has been written so far was written by the step."""
        self._versions = [p._version for p, _ in self._pairs]


def dtypes(p: Tensor, state: Mapping[str, Any]) -> dict[str, str]:
    """Return the dtypes of a parameter and of its state, by name."""
    stored = {"": p, **{key: x for key, x in state.items() if key != "step"}}
    return {key or "weights": _name(x.dtype) for key, x in sorted(stored.items())}


def report(plan: Plan, p: Tensor, state: Mapping[str, Any], want: Wanted) -> dict[str, Any]:
    """Return how a parameter and its state are stored, or will be at its first step, and in how many bytes."""
    kind: Any = want.master if p.dtype in LOW else False
    beside = dtypes_beside(state) if state else [torch.float32] if kind is True else [REMAINDERS[kind]] if kind else []
    bytes_, why, formats = prod(plan.shape) * sum(x.itemsize for x in (p.dtype, *beside)), {}, {}
    for key, shape in plan.state_shapes.items():
        if shape is None:
            continue
        planned = format_of(plan, key, p, want)
        found = _name(state[key].dtype) if key in state else planned.dtype
        formats[key] = "int8" if found == "uint8" else found
        each = torch.int8.itemsize if formats[key] == "int8" else getattr(torch, found).itemsize
        scales = prod(scales_of(tuple(plan.shape))) * 4 if formats[key] == "int8" else 0
        bytes_ += prod(shape) * each + scales
        if planned.why and formats[key] == planned.dtype:
            why[key] = planned.why
    shown = "".join(f"+{x.itemsize * 8}" for x in beside)
    return {"weights": _name(p.dtype) + shown, "state": formats, "bytes": bytes_, "why": why}


def dtypes_beside(state: Mapping[str, Any]) -> list[torch.dtype]:
    """Return the dtype of what is held beside the weights."""
    return [state[key].dtype for key in (MASTER, REMAINDER) if key in state]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ---- for engines


def storage_of(
    plan: Plan, rule: Any, p: Tensor, state: Mapping[str, Any], want: Wanted, held: Held, index: Callable[[], Index]
) -> Storage | None:
    """Return how the arrays of one job are stored; None where all are plain and rounded to nearest."""
    name = without_wrappers(plan.name)
    weights = None
    low = p.dtype in LOW and MASTER not in state
    drawn = low and want.rounding == "stochastic" and not _is_exact(state)
    if low and (REMAINDER in state or drawn):
        rest = local(state[REMAINDER]) if REMAINDER in state else None
        key = key_of(want.seed, name, WEIGHTS) if drawn else None
        weights = Format(None if rest is None else held.view(rest), key)
    fields = [_field(plan, rule, key, state, want, held, name) for key in rule.State._fields]
    formats = (weights, *fields)
    if all(one is None for one in formats):
        return None
    draws = any(one is not None and one.key is not None for one in formats)
    part = held.piece.part
    row_dims = 0 if len(plan.shape) == 1 else 2 if part is not None and not (part.one or part.drop or part.axis) else 1
    return Storage(formats, held.view(index()) if draws else index_of(held.view(local(p)).shape), row_dims)


def _is_exact(state: Mapping[str, Any]) -> bool:
    return REMAINDER in state and state[REMAINDER].dtype == torch.int16


def _field(
    plan: Plan, rule: Any, key: str, state: Mapping[str, Any], want: Wanted, held: Held, name: str
) -> Format | None:
    value = state.get(key)
    if value is None or plan.state_shapes[key] is None:
        return None
    if is_group(value):
        scale, part = local(state[key + SCALE]), held.piece.part
        rows = part is not None and not part.drop and part.axis == 0 and len(plan.shape) > 1
        return Format(held.view(scale) if rows else scale, None, is_signed(rule, key))
    # Near 1, as decay rates are, rounding to nearest would leave the average where it is.
    by_default = want.rounding is None and value.dtype is torch.bfloat16 and not _as_momentum(plan, key, want)
    if value.dtype in LOW and is_alike(plan, key) and (want.rounding == "stochastic" or by_default):
        return Format(None, key_of(want.seed, name, key))
    return None


def _as_momentum(plan: Plan, key: str, want: Wanted) -> bool:
    """Return whether a dtype was asked for by momentum_dtype alone, which rounds to nearest."""
    return key in plan.h.state_dtypes() and key not in want.state


def index_here(plan: Plan, p: Tensor) -> Index:
    """Return the index of what of a parameter is here."""
    cut = plan.cut
    dims = {} if cut is None else {d: cut.local_indices(d, plan.shape[d]) for d in {d for _, d in cut.axes}}
    return part_of(tuple(plan.shape), dims)
