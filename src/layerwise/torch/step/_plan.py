"""The plan of one parameter's step: its layout, the places of its parts, and its state; checks of a loaded state."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import prod
from operator import itemgetter
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor

from layerwise.core import plan as core
from layerwise.core.library import FLOATING, Library
from layerwise.core.slot import ArraySpec, own_entries, possible_names
from layerwise.core.storage_plan import StoragePlan
from layerwise.errors import StateError
from layerwise.layout.blocks import Blocks
from layerwise.layout.pieces import lay_out, sharded_layout
from layerwise.options.settings import Hyper
from layerwise.storage.coded import DTYPES
from layerwise.storage.index import Index, part_of
from layerwise.storage.options import RequestedStorage
from layerwise.storage.quantized_groups import GROUP
from layerwise.storage.sixteen_bits import MASTER, REMAINDER
from layerwise.storage.state_dtypes import scales_of
from layerwise.torch.arrays._library import LIBRARY, LOW, fast_product_dtype, named_state
from layerwise.torch.groups._members import State, without_wrappers
from layerwise.torch.sharding._cuts import WHOLE, Axis, Cut, Division, replicas_of
from layerwise.torch.sharding._dtensors import CPU, is_dtensor, local, placed
from layerwise.torch.step._checks import has_address, memory_of, why_unreadable

Shape = tuple[int, ...]
WAY_OUT = "Create the optimizer with the options it was saved with."
AS_SAVED = "Load what state_dict() returned, or start again after clear_state()."
ANY = ArraySpec((), (*FLOATING, *DTYPES))  # of an earlier rule, or of earlier options
REMADE = (
    "Create the optimizer with the current parameters, and load its state through torch.distributed.checkpoint, "
    "which reshards it."
)
MOST_STEPS = 2**53  # exact as a float, of which powers are computed, and far below the limit of int64


@dataclass(frozen=True)
class Plan(core.Plan):
    """The plan of one parameter's step, which may lie on several ranks."""

    name: str
    dtype: torch.dtype
    division: Division = WHOLE
    tensors: tuple[Plan, ...] = ()  # if a parameter has parts of several: those of which some rank has a part
    replicas: tuple[Axis, ...] = ()  # the axes over which it is replicated

    @property
    def is_cut(self) -> bool:  # type: ignore[override]
        return self.cut is not None

    @property
    def settings(self) -> tuple[object, ...]:
        """Everything that it was made for, besides shape and blocks."""
        return self.name, self.h, self.dtype, self.division, self.replicas

    @property
    def cut(self) -> Cut | None:
        """The division of a DTensor."""
        return self.division if isinstance(self.division, Cut) else None

    @property
    def stored_together(self) -> tuple[Plan, ...]:
        return self.tensors or (self,)

    @property
    def key(self) -> str:
        return without_wrappers(self.name)

    @property
    def way_out(self) -> str:
        """The way out if a checkpoint does not fit."""
        return self.division.way_out

    def described(self) -> Hashable:
        """Return the data that must be the same on all ranks."""
        own = [
            (one.name, one.h, one.h.model_bound, tuple(one.shape), one.layout.pieces) for one in self.stored_together
        ]
        return own, self.division.described()

    def in_words(self) -> object:
        """Return the shape in the form that ranks compare."""
        return {one.name: tuple(one.shape) for one in self.tensors} or tuple(self.shape)

    def zeros_maker(self, lib: Library, field: str, dtype: str) -> Callable[[Tensor], Tensor]:
        cut, shape, kept = self.cut, self.state_shapes[field], self.kept[field]
        if cut is None and self.elementwise[field]:
            made = partial(torch.zeros_like, dtype=getattr(torch, dtype), requires_grad=False)
            return cast("Callable[[Tensor], Tensor]", made)
        if cut is None or shape is None or kept is None:
            return super().zeros_maker(lib, field, dtype)
        alike = all(kept)

        def make(p: Tensor) -> Tensor:
            made = lib.zeros_like(p, dtype) if alike else lib.zeros(cut.local_shape(shape, kept, p), dtype, p)
            return cut.wrapped(made, shape, kept, p.stride() if alike else None)

        return make

    def new_scales(self, lib: Library, p: Tensor) -> Tensor:
        if self.cut is None:
            return cast("Tensor", super().new_scales(lib, p))
        whole, here = scales_of(self.shape), scales_of(tuple(local(p).shape))
        kept = tuple(d < len(whole) for d in range(len(self.shape)))
        return self.cut.wrapped(lib.zeros(here, "float32", p), whole, kept)

    def index(self, p: Tensor) -> Index:
        cut = self.cut
        dims = {} if cut is None else {d: cut.local_indices(d, self.shape[d]) for d in {d for _, d in cut.axes}}
        return part_of(self.shape, dims)

    def why_not_grouped(self) -> str:
        return self.division.why_not_grouped(self.shape) or super().why_not_grouped()

    def storage_plan(self, p: Tensor, want: RequestedStorage) -> StoragePlan:
        """Return everything that determines the storage of a parameter, and of others with an equal plan."""
        return StoragePlan(LIBRARY, self, LIBRARY.dtype(p), want)

    def placed(self, key: str, value: Tensor) -> Tensor:
        """Return a loaded state, laid out as the plan requires."""
        if self.cut is not None:
            # Companions of weights or state are sharded like them; scales have at most two dimensions.
            kept = self.kept.get(key, tuple(d < value.ndim for d in range(len(self.shape))))
            if kept is not None:
                way_out = "Load it through torch.distributed.checkpoint, which reshards it."
                return placed(f"{key!r} of {self.name}", value, self.cut.mesh, self.cut.along(kept), way_out)
        if is_dtensor(value):
            raise StateError(
                f"{key!r} of {self.name} is sharded, but the parameter is not. Load it through "
                "torch.distributed.checkpoint, or pass the state's full_tensor()."
            )
        return value

    def whole(self, state: Mapping[str, Tensor]) -> dict[str, State]:
        """Return the state of each whole tensor by name, in host memory. All ranks call this together."""
        return self.division.whole_states(self, state)


def plan_of(
    rule: ModuleType,
    p: Tensor,
    h: Hyper,
    name: str,
    blocks: Callable[[str], Blocks | None],
    division: Division = WHOLE,
    device: torch.device | None = None,
    copies: tuple[Axis, ...] = (),
) -> Plan:
    """Return the plan of a parameter's step with these settings; `blocks` are by the name of a tensor.

    `device` is that of the step, if it differs from the parameter's; `copies` are processes with the same tensors.
    """
    replicas, eps = replicas_of(division, copies), torch.finfo(p.dtype).eps
    h = h.with_fast_dtype(fast_product_dtype(device or p.device, p.dtype)) if h.of_matrices else h

    def of_tensor(name: str, shape: Shape) -> Plan:
        layout = lay_out(name, rule, h, shape, blocks(name), eps, division.cuts)
        if division is not WHOLE or replicas:
            parts = division.parts_along(len(shape))
            layout = sharded_layout(layout, parts, prod(len(axis.ranks) for axis in replicas))
        shapes, kept, elementwise = core.state_layout(rule, layout, len(shape))
        held = division.parts_here(layout, kept, replicas)
        return Plan(name, rule, h, shape, layout, held, shapes, kept, elementwise, p.dtype, division, (), replicas)

    return cast("Plan", division.plan(of_tensor, name, p))


# ---- state


def as_step(name: str, value: Any) -> Tensor:
    """Return a step count as an integer tensor, whatever form it was saved in."""
    number = value
    if isinstance(value, Tensor):
        _check_one(name, value)
        check_there(name, "step", value)
        number = value.item()
    try:
        count = int(number) if not isinstance(number, bool) and number == int(number) else -1
    except (TypeError, ValueError, OverflowError):
        count = -1
    if not 0 <= count <= MOST_STEPS:
        raise StateError(f"'step' of {name} must be an integer from 0 to 2^53, but is {value!r}. {AS_SAVED}")
    return torch.tensor(count, device=value.device if isinstance(value, Tensor) else "cpu")


def _check_one(name: str, step: Tensor) -> None:
    _check_readable(name, "step", step)
    if step.numel() != 1:
        raise StateError(f"'step' of {name} must be one number, but has the shape {tuple(step.shape)}. {AS_SAVED}")


def _check_readable(name: str, key: str, value: Tensor) -> None:
    """Raise unless these are plain real numbers."""
    odd: object = value.dtype if value.is_complex() or value.is_quantized else None
    odd = "nested" if value.is_nested else value.layout if value.layout is not torch.strided else odd
    if odd is not None:
        raise StateError(f"{key!r} of {name} must be a dense tensor of real numbers, but is {odd}. {AS_SAVED}")


def check_there(name: str, key: str, value: Tensor) -> None:
    if value.is_meta:
        raise StateError(f"{key!r} of {name} is on the meta device and has no values. Load its values.")


def make_missing(
    states: Sequence[State],
    params: Sequence[Tensor],
    plans: Sequence[Plan],
    own: Sequence[StoragePlan],
    on_device: bool,
) -> None:
    """Make the missing parts of parameters' states."""
    for state, p, plan in zip(states, params, plans, strict=True):
        count = state.get("step")
        device = p.device if on_device else CPU
        if count is None:
            state["step"] = torch.zeros((), dtype=torch.long, device=device)
        elif not isinstance(count, Tensor):
            state["step"] = as_step(plan.name, count).to(device)
        elif on_device and count.device != device:
            state["step"] = count.to(device)
    for storage_plan, some in groupby(zip(own, params, states, strict=True), itemgetter(0)):
        storage_plan.convert_state([(p, state) for _, p, state in some])
    for storage_plan, p, state in zip(own, params, states, strict=True):
        if storage_plan.is_low or not state.keys().isdisjoint((MASTER, REMAINDER)):
            storage_plan.convert_weights(p, state, local(p.detach()))


def counted_elsewhere(states: Iterable[State]) -> bool:
    """Return True if some of these have step counts outside of CPU memory."""
    found = [state["step"] for state in states if "step" in state]
    return any(isinstance(step, Tensor) and step.device.type != "cpu" for step in found)


def copy_storage(state: State) -> None:
    """Give the state its own storage, so that tensors that autograd keeps from the last step are not written to."""
    state.update({key: x.clone() for key, x in own_entries(state).items() if key != "step"})


def has_state(state: State | None) -> bool:
    """Return True if a parameter has our state, and not only entries of other programs."""
    return state is not None and bool(own_entries(state))


def forget_state(states: MutableMapping[Tensor, State], p: Tensor) -> None:
    """Forget a parameter's state, except other programs' entries."""
    state = states.get(p, {})
    for key in own_entries(state):
        del state[key]
    if not state:
        states.pop(p, None)


def check_kept(plan: Plan, p: Tensor, state: State) -> None:
    """Raise unless the kept state of a parameter, without others' entries, is valid and on the right device."""
    parts, own = parts_of(plan, state), {*possible_names(plan.rule.State._fields), "step"}
    for key, x in state.items():
        if key != "step":
            check_values(plan, parts.get(key, ANY), key, x)
        if isinstance(x, Tensor) and (why := _unusable(plan, key, x, p)):
            raise StateError(f"{key!r} of {plan.name} {why}")
        if key == "step" and not (isinstance(x, Tensor) and x.device.type != "cpu"):  # reading it would mean waiting
            as_step(plan.name, x)
        if key not in own:
            raise StateError(
                f"{key!r} of {plan.name} is not part of the state of {plan.h.optimizer}, the current rule of its "
                "group. Drop the state of the previous rule with clear_state(), or restore that rule."
            )
    for key, part in parts.items():
        if part.of in state and key not in state:
            raise StateError(f"{part.of!r} of {plan.name} is in 8 bits, but {key!r} is missing. {AS_SAVED}")
    check_shapes(plan, parts, state)


def _unusable(plan: Plan, key: str, x: Tensor, p: Tensor) -> str:
    """Return the reason why a part of the state cannot be stepped in place, or an empty string."""
    if why := why_unreadable(x):
        return why
    if key == "step":
        _check_one(plan.name, x)
        return ""
    if x.device != p.device:
        return f"must be on {p.device} as its parameter is, but is on {x.device}. {AS_SAVED}"
    if is_dtensor(x) != (plan.cut is not None):
        kind = "a plain tensor" if plan.cut is None else "a DTensor"
        return f"must be {kind} as its parameter is. {REMADE}"
    shares = has_address(local(x)) and memory_of(local(x)).overlaps_itself
    return "is expanded: its elements share memory. Pass its contiguous()." if shares else ""


def parts_of(plan: Plan, state: State) -> dict[str, ArraySpec]:
    """Return the requirements of the parts of a parameter's state."""
    return named_state(state).expected(plan, plan.dtype in LOW)


def check_shapes(plan: Plan, parts: Mapping[str, ArraySpec], state: State) -> None:
    """Raise unless the existing state has these shapes."""
    for key, part in parts.items():
        if key in state and tuple(state[key].shape) != part.shape:
            of = f", a scale for each {GROUP} elements of a row" if part.of else ""
            raise StateError(
                f"{key!r} of {plan.name} must have the shape {part.shape}{of}, but has {tuple(state[key].shape)}. "
                f"{plan.way_out}"
            )


def check_values(plan: Plan, part: ArraySpec, key: str, value: Any) -> None:
    """Raise unless this is a tensor of numbers, or codes, to continue from."""
    if isinstance(value, Tensor):
        _check_readable(plan.name, key, value)
    if LIBRARY.dtype(value) not in part.dtypes:
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise StateError(f"{key!r} of {plan.name} must be {_allowed(plan, part)}, but is {kind}. {AS_SAVED}")


def _allowed(plan: Plan, part: ArraySpec) -> str:
    """Return the dtypes that a part of the state may have, in words."""
    if not part.dtypes:
        whose = "full_precision_state_dict skips it and reads the 16-bit weight that it belongs to"
        return f"absent for weights of {plan.dtype}, which need no extra bits ({whose})"
    if part.others == part.dtypes:
        return f"a tensor of {' or '.join(part.dtypes)}"
    codes = "".join(f", or its 8-bit codes in torch.{one}" for one in part.others)
    return f"a tensor of 16- to 64-bit floats{codes}"
