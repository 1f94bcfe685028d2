"""The storage of one parameter's weights and state: making it, converting it, and handing it to engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from layerwise.storage import WEIGHTS, Format, Storage
from layerwise.storage.bits import key_of
from layerwise.storage.forms import blocks_cut_rows, row_dims, scales_of
from layerwise.storage.index import Index, index_of, part_of
from layerwise.storage.options import MASTER, REMAINDER, SCALE, Wanted, is_signed
from layerwise.storage.stored import Stored
from layerwise.torch.checkpoints._forms import without_wrappers
from layerwise.torch.sharding._cuts import Held, like, local
from layerwise.torch.step._formats import REMAINDERS, codes_of, format_of, is_alike, named
from layerwise.torch.step._namespace import BITS
from layerwise.torch.step._plan import Plan
from layerwise.torch.step._tensors import LOW, computing

State = dict[str, Any]
PIECE = 1 << 18  # elements that are put in another form at once
CODES = (torch.int8, torch.uint8)


def is_group(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in CODES


# ---- making and converting


def made(plan: Plan, key: str, p: Tensor, dtype: str) -> State:
    """Return a new field, with its scales."""
    if dtype != "int8":
        return {key: plan.zeros(key, p, getattr(torch, dtype))}
    whole, here = scales_of(tuple(plan.shape)), scales_of(tuple(local(p).shape))
    scale = torch.zeros(here, dtype=torch.float32, device=p.device)
    if plan.cut is not None:
        scale = plan.cut.wrapped(scale, whole, tuple(d < len(whole) for d in range(len(plan.shape))))
    return {key: plan.zeros(key, p, codes_of(plan.rule, key)), key + SCALE: scale}


def as_numbers(state: Mapping[str, Any], key: str, signed: bool) -> Tensor:
    """Return a field in floating point: itself, or the numbers of its groups."""
    value: Tensor = state[key]
    if not is_group(value):
        return value
    found: Tensor = like(value, _whole(local(value), Format(local(state[key + SCALE]), None, signed)).read())
    return found


def _whole(array: Tensor, form: Format) -> Stored:
    return Stored(array, form, index_of(tuple(array.shape)), min(1, array.ndim - 1), BITS)


def put_state_in_form(state: State, plan: Plan, p: Tensor, want: Wanted) -> None:
    """Make the missing parts of a parameter's state, and convert those stored in another form than wanted."""
    for key, shape in plan.state_shapes.items():
        if shape is None:
            continue
        if key not in state:
            state.update(made(plan, key, p, format_of(plan, key, p, want).dtype))
        elif key in want.state:
            _convert(state, plan, key, p, format_of(plan, key, p, want).dtype)


def _convert(state: State, plan: Plan, key: str, p: Tensor, dtype: str) -> None:
    before: Tensor = state[key]
    if dtype == ("int8" if is_group(before) else named(before.dtype)):
        return
    numbers = local(as_numbers(state, key, is_signed(plan.rule, key)))
    found = made(plan, key, p, dtype)
    here = local(found[key])
    if is_group(here):
        scale = local(found[key + SCALE])
        codes, scales = _whole(here, Format(scale, None, is_signed(plan.rule, key))).encode(numbers, 0)
        here.copy_(codes)
        scale.copy_(scales)
    else:
        here.copy_(numbers)
    state.pop(key + SCALE, None)
    state.update(found)


def full_weight(p: Tensor, state: Mapping[str, Any]) -> Tensor:
    """Return a parameter's weights with all their stored precision: its masters, or with its remainder, or itself."""
    if MASTER in state:
        master: Tensor = state[MASTER].detach().clone()
        return master
    if REMAINDER not in state:
        return p.detach().to(computing(p.dtype), copy=True)
    here, rest = local(p.detach()), local(state[REMAINDER])
    full = torch.empty_like(here, dtype=torch.float32)
    for part, lacks, numbers in _pieces(here, rest, full):
        numbers.copy_(_whole(part, Format(lacks)).read())
    joined: Tensor = like(p.detach(), full)
    return joined


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the tensors' rows, some at a time: intermediate integers take many times the memory of stored ones."""
    most = max(1, PIECE // max(1, tensors[0][:1].numel())) if tensors[0].ndim else 1
    return zip(*(torch.split(x, most) if x.ndim else (x,) for x in tensors), strict=True)


def set_full_weight(p: Tensor, state: State, full: Tensor) -> None:
    """Set a parameter's weights, and their companions, to float32 numbers."""
    here = local(p.detach())
    if MASTER in state:
        local(state[MASTER]).copy_(local(full))
    if REMAINDER in state:
        rest = local(state[REMAINDER])
        for part, lacks, numbers in _pieces(here, rest, local(full)):
            weights, lacking = _whole(part, Format(lacks)).encode(numbers, 0)
            part.copy_(weights)
            lacks.copy_(lacking)
    else:
        here.copy_(local(full))


def put_weights_in_form(state: State, p: Tensor, master: bool | str) -> None:
    """Store a parameter's weights in the wanted form, without losing precision that is already stored.

    This happens only when a step is about to be taken: earlier, the model's weights may not have been loaded yet, and a
    remainder means nothing without them.
    """
    kind: Any = master if p.dtype in LOW else False
    rest = state.get(REMAINDER)
    if (MASTER in state) == (kind is True) and (None if rest is None else rest.dtype) == REMAINDERS.get(kind):
        return
    full = full_weight(p, state) if state.keys() & {MASTER, REMAINDER} or kind is True else None
    state.pop(MASTER, None)
    state.pop(REMAINDER, None)
    if kind is True:
        state[MASTER] = full
        return
    if kind:
        zeros = torch.zeros_like(local(p), dtype=REMAINDERS[kind], memory_format=torch.preserve_format)
        state[REMAINDER] = like(p.detach(), zeros)
    if full is not None:  # else the weights lack nothing of what is known of them
        set_full_weight(p, state, full)


class Remainders:
    """The remainders of split weights, some of which belong to weights that have been written to since."""

    def __init__(self, heres: Sequence[Tensor], states: Sequence[Mapping[str, Any]]) -> None:
        pairs = [(p, local(one[REMAINDER])) for p, one in zip(heres, states, strict=True) if REMAINDER in one]
        self._pairs, self._versions = pairs, [-1] * len(pairs)

    def follow(self) -> None:
        """Let weights that were set to zero be zero.

        Beside any other number, an outdated remainder is less than the weight's last place. Beside zero it would be the
        whole weight, and its norm is the measure of a step.
        """
        for (p, rest), version in zip(self._pairs, self._versions, strict=True):
            if p._version != version:
                rest.masked_fill_(p == 0, 0)

    def written(self) -> None:
        """Remember that everything written so far was written by the step."""
        self._versions = [p._version for p, _ in self._pairs]


def dtypes(p: Tensor, state: Mapping[str, Any]) -> dict[str, str]:
    """Return the dtypes of a parameter and of its state, by name."""
    stored = {"": p, **{key: x for key, x in state.items() if key != "step"}}
    return {key or "weights": named(x.dtype) for key, x in sorted(stored.items())}


def report(plan: Plan, p: Tensor, state: Mapping[str, Any], want: Wanted) -> dict[str, Any]:
    """Return the storage of a parameter and its state, present or from its first step on, and its bytes."""
    kind: Any = want.master if p.dtype in LOW else False
    beside = dtypes_beside(state) if state else [torch.float32] if kind is True else [REMAINDERS[kind]] if kind else []
    bytes_, why, formats = prod(plan.shape) * sum(x.itemsize for x in (p.dtype, *beside)), {}, {}
    for key, shape in plan.state_shapes.items():
        if shape is None:
            continue
        planned = format_of(plan, key, p, want)
        found = named(state[key].dtype) if key in state else planned.dtype
        formats[key] = "int8" if found == "uint8" else found
        each = torch.int8.itemsize if formats[key] == "int8" else getattr(torch, found).itemsize
        scales = prod(scales_of(tuple(plan.shape))) * 4 if formats[key] == "int8" else 0
        bytes_ += prod(shape) * each + scales
        if planned.why and formats[key] == planned.dtype:
            why[key] = planned.why
    shown = "".join(f"+{x.itemsize * 8}" for x in beside)
    return {"weights": named(p.dtype) + shown, "state": formats, "bytes": bytes_, "why": why}


def dtypes_beside(state: Mapping[str, Any]) -> list[torch.dtype]:
    """Return the dtype of the companions of the weights."""
    return [state[key].dtype for key in (MASTER, REMAINDER) if key in state]


# ---- for engines


def storage_of(
    plan: Plan, p: Tensor, state: Mapping[str, Any], want: Wanted, held: Held, index: Callable[[], Index]
) -> Storage | None:
    """Return the storage of the arrays of one job; None if all are plain and rounded to nearest."""
    plan, weights = plan.member(held), None
    name = without_wrappers(plan.name)
    low = p.dtype in LOW and MASTER not in state
    drawn = low and want.draws_weights(_kept(state))
    if low and (REMAINDER in state or drawn):
        rest = local(state[REMAINDER]) if REMAINDER in state else None
        key = key_of(want.seed, name, WEIGHTS) if drawn else None
        weights = Format(None if rest is None else held.view(rest), key)
    fields = [_field(plan, key, state, want, held, name) for key in plan.rule.State._fields]
    formats = (weights, *fields)
    if all(one is None for one in formats):
        return None
    draws = any(one is not None and one.key is not None for one in formats)
    seen = held.index(index) if draws else index_of(held.view(local(p)).shape)
    return Storage(formats, seen, row_dims(len(plan.shape), held.piece.part))


def _kept(state: Mapping[str, Any]) -> int:
    """Return the number of bits kept beside weights."""
    return torch.iinfo(state[REMAINDER].dtype).bits if REMAINDER in state else 0


def _field(plan: Plan, key: str, state: Mapping[str, Any], want: Wanted, held: Held, name: str) -> Format | None:
    value = state.get(key)
    if value is None or plan.state_shapes[key] is None:
        return None
    dtype = "int8" if is_group(value) else named(value.dtype)
    draws = want.draws_state(key, dtype, plan.h.state_dtypes().get(key))
    drawn = key_of(want.seed, name, key) if draws else None
    if is_group(value):
        scale = local(state[key + SCALE])
        rows = blocks_cut_rows(len(plan.shape), held.piece.part)
        return Format(held.view(scale) if rows else scale, drawn, is_signed(plan.rule, key))
    return Format(None, drawn) if drawn and value.dtype in LOW and is_alike(plan, key) else None


def index_here(plan: Plan, p: Tensor) -> Index:
    """Return the index of the local part of a parameter."""
    cut = plan.cut
    dims = {} if cut is None else {d: cut.local_indices(d, plan.shape[d]) for d in {d for _, d in cut.axes}}
    return part_of(tuple(plan.shape), dims)
