"""The storage of one parameter's weights and state: which format each has, making it, and converting it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from layerwise.errors import HyperparameterError, sentence
from layerwise.storage import WEIGHTS, Format, Storage, groups
from layerwise.storage.bits import key_of
from layerwise.storage.forms import CUT_BY_BLOCKS, blocks_cut_groups, blocks_cut_rows, row_dims, scales_of
from layerwise.storage.index import Index, index_of, part_of
from layerwise.storage.options import MASTER, REMAINDER, SCALE, Wanted, is_signed
from layerwise.storage.stored import Stored
from layerwise.torch.checkpoints._forms import without_wrappers
from layerwise.torch.sharding._cuts import Held, is_dtensor, local
from layerwise.torch.step._namespace import BITS
from layerwise.torch.step._plan import Plan
from layerwise.torch.step._tensors import LOW, computing

State = dict[str, Any]
REMAINDERS: dict[Any, torch.dtype] = {"split": torch.int16, "split24": torch.int8}
CODES = (torch.int8, torch.uint8)


def check_followed(want: Wanted, differentiable: bool) -> None:
    """Raise where autograd is to follow what rounds at random, or in groups."""
    if differentiable and (want.state or want.rounding == "stochastic"):
        name = "state_dtype" if want.state else "rounding"
        raise HyperparameterError(
            sentence(name, "None when differentiable=True", want.state or want.rounding, "Drop one of them.")
        )


# ---- which format


def is_alike(plan: Plan, key: str) -> bool:
    """Return whether a state extends along all dimensions of its parameter."""
    kept = plan.kept.get(key)
    return kept is not None and all(kept)


def why_not_grouped(plan: Plan) -> str:
    """Return why the state of a parameter cannot be stored in groups, or an empty string."""
    shape = tuple(plan.shape)
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
            return f"its cut along dimension {d} over {n} processes would cut groups of 64 elements"
    return ""


def format_of(plan: Plan, key: str, p: Tensor, want: Wanted, warn: bool = False) -> str:
    """Return the dtype, by name, in which a field is to be stored."""
    own = str(computing(p.dtype)).removeprefix("torch.")
    asked = want.state.get(key) or plan.h.state_dtypes().get(key)
    if asked is None or not is_alike(plan, key):
        return own
    if asked != "int8":
        return asked
    if prod(plan.shape) < groups.LEAST:
        return own
    if why := why_not_grouped(plan):
        if warn:
            warnings.warn(f"{key!r} of {plan.name} is stored in {own} and not in 8 bits: {why}.", stacklevel=2)
        return own
    return asked


def is_group(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in CODES


# ---- making and converting


def scale_shapes(plan: Plan, p: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of the scales of a field in groups, of the whole and of what is here."""
    return scales_of(tuple(plan.shape)), scales_of(tuple(local(p).shape))


def made(plan: Plan, rule: Any, key: str, p: Tensor, want: Wanted) -> State:
    """Return a field as it is at the start, with its scales."""
    dtype = format_of(plan, key, p, want, warn=True)
    if dtype != "int8":
        return {key: plan.zeros(key, p, getattr(torch, dtype))}
    whole, here = scale_shapes(plan, p)
    scale = torch.zeros(here, dtype=torch.float32, device=p.device)
    codes = plan.zeros(key, p, torch.int8 if is_signed(rule, key) else torch.uint8)
    return {
        key: codes,
        key + SCALE: scale if plan.cut is None else plan.cut.wrapped(scale, whole, (True,) * len(whole)),
    }


def as_numbers(state: Mapping[str, Any], key: str, signed: bool) -> Tensor:
    """Return a field in floating point: itself, or the numbers of its groups."""
    value: Tensor = state[key]
    if not is_group(value):
        return value
    found = _whole(local(value), Format(local(state[key + SCALE]), None, signed)).read()
    return _like(value, found)


def _whole(array: Tensor, form: Format) -> Stored:
    return Stored(array, form, index_of(tuple(array.shape)), min(1, array.ndim - 1), BITS)


def _like(value: Any, here: Tensor) -> Tensor:
    """Return a local part as `value` is: a tensor, or the DTensor with its placements."""
    if not is_dtensor(value):
        return here
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    meta = TensorMeta(value.shape, value.stride(), here.dtype)
    made: Any = DTensor
    wrapper: Tensor = made(
        here, DTensorSpec(value.device_mesh, value.placements, tensor_meta=meta), requires_grad=False
    )
    return wrapper


def put_in_form(state: State, plan: Plan, rule: Any, p: Tensor, want: Wanted, convert: bool = True) -> None:
    """Make what of a parameter's state is not there yet, and convert what is stored in another form than is wanted."""
    for key, shape in plan.state_shapes.items():
        if shape is None:
            continue
        if key not in state:
            state.update(made(plan, rule, key, p, want))
        elif convert and (key in want.state or (is_group(state[key]) and why_not_grouped(plan))):
            _convert(state, plan, rule, key, p, want)
    _put_weights_in_form(state, p, want.master)


def _convert(state: State, plan: Plan, rule: Any, key: str, p: Tensor, want: Wanted) -> None:
    dtype = format_of(plan, key, p, want)
    before: Tensor = state[key]
    if dtype == ("int8" if is_group(before) else str(before.dtype).removeprefix("torch.")):
        return
    numbers = as_numbers(state, key, is_signed(rule, key))
    state.pop(key + SCALE, None)
    state.update(made(plan, rule, key, p, want))
    here, form = local(state[key]), None
    if is_group(here):
        form = _whole(here, Format(local(state[key + SCALE]), None, is_signed(rule, key)))
        codes, scale = form.encode(local(numbers), 0)
        here.copy_(codes)
        local(state[key + SCALE]).copy_(scale)
    else:
        here.copy_(local(numbers))


def full_weight(p: Tensor, state: Mapping[str, Any]) -> Tensor:
    """Return a parameter's weights as precisely as they are held: its masters, or with its remainder, or itself."""
    if MASTER in state:
        master: Tensor = state[MASTER].detach().clone()
        return master
    if REMAINDER not in state:
        return p.detach().to(computing(p.dtype), copy=True)
    found = _whole(local(p.detach()), Format(local(state[REMAINDER]))).read()
    return _like(p.detach(), found)


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


def _put_weights_in_form(state: State, p: Tensor, master: bool | str) -> None:
    kind: Any = master if p.dtype in LOW else False
    rest = state.get(REMAINDER)
    if (MASTER in state) == (kind is True) and (None if rest is None else rest.dtype) == REMAINDERS.get(kind):
        return
    full = full_weight(p, state)
    state.pop(MASTER, None)
    state.pop(REMAINDER, None)
    if kind is True:
        state[MASTER] = full
    elif kind:
        zeros = torch.zeros_like(local(p), dtype=REMAINDERS[kind], memory_format=torch.preserve_format)
        state[REMAINDER] = _like(p.detach(), zeros)
        set_full_weight(p, state, full)
    elif rest is not None:
        local(p.detach()).copy_(local(full))


# ---- for engines


def storage_of(
    plan: Plan, rule: Any, p: Tensor, state: Mapping[str, Any], want: Wanted, held: Held, index: Callable[[], Index]
) -> Storage | None:
    """Return how the arrays of one job are stored; None where all are plain and rounded to nearest."""
    name = without_wrappers(plan.name)
    weights = None
    low = p.dtype in LOW and MASTER not in state
    drawn = low and want.draws_weights(_kept(state))
    if low and (REMAINDER in state or drawn):
        rest = local(state[REMAINDER]) if REMAINDER in state else None
        key = key_of(want.seed, name, WEIGHTS) if drawn else None
        weights = Format(None if rest is None else held.view(rest), key)
    fields = [_field(plan, rule, key, state, want, held, name) for key in rule.State._fields]
    formats = (weights, *fields)
    if all(one is None for one in formats):
        return None
    draws = any(one is not None and one.key is not None for one in formats)
    seen = held.view(index()) if draws else index_of(held.view(local(p)).shape)
    return Storage(formats, seen, row_dims(len(plan.shape), held.piece.part))


def _kept(state: Mapping[str, Any]) -> int:
    """Return how many bits are kept beside weights."""
    return torch.iinfo(state[REMAINDER].dtype).bits if REMAINDER in state else 0


def _field(
    plan: Plan, rule: Any, key: str, state: Mapping[str, Any], want: Wanted, held: Held, name: str
) -> Format | None:
    value = state.get(key)
    if value is None or plan.state_shapes[key] is None:
        return None
    if is_group(value):
        scale = local(state[key + SCALE])
        rows = blocks_cut_rows(len(plan.shape), held.piece.part)
        return Format(held.view(scale) if rows else scale, None, is_signed(rule, key))
    if value.dtype in LOW and is_alike(plan, key) and want.draws_state(key):
        return Format(None, key_of(want.seed, name, key))
    return None


def index_here(plan: Plan, p: Tensor) -> Index:
    """Return the index of what of a parameter is here."""
    cut = plan.cut
    dims = {} if cut is None else {d: cut.local_indices(d, plan.shape[d]) for d in {d for _, d in cut.axes}}
    return part_of(tuple(plan.shape), dims)
