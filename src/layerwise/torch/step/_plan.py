"""The plan of one parameter's step: its layout, the places of its parts, and its state."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from types import ModuleType
from typing import cast

import torch
from torch import Tensor

from layerwise.core import plan
from layerwise.core.library import Library
from layerwise.core.plan import state_layout
from layerwise.core.storage_plan import StoragePlan
from layerwise.errors import ParameterError, StateError
from layerwise.layout.blocks import Blocks
from layerwise.layout.pieces import lay_out, sharded_layout
from layerwise.options.settings import Hyper
from layerwise.storage.index import Index, part_of
from layerwise.storage.options import RequestedStorage
from layerwise.storage.state_dtypes import scales_of
from layerwise.torch.arrays._library import LIBRARY, fast_product_dtype
from layerwise.torch.groups._members import State, without_wrappers
from layerwise.torch.sharding._cuts import WHOLE, Axis, Cut, Division, replicas_of
from layerwise.torch.sharding._dtensors import check_alike, is_dtensor, local, placed
from layerwise.torch.step._checks import check_gradient, check_parameter

Shape = tuple[int, ...]
WAY_OUT = "Create the optimizer with the options it was saved with."
AS_SAVED = "Load what state_dict() returned, or start again after clear_state()."


@dataclass(frozen=True)
class Plan(plan.Plan):
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


def check_step(name: str, p: Tensor, g: Tensor, differentiable: bool) -> None:
    """Raise unless the parameter can be stepped with this gradient."""
    check_parameter(name, p)
    check_gradient(name, p, g)
    if differentiable and p.is_leaf and p.requires_grad:
        raise ParameterError(
            f"{name} is a leaf that requires grad, so a differentiable step cannot write to it. Step a clone of it."
        )
    check_alike(name, p, g)


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
    h = h.with_fast_dtype(fast_product_dtype(device or p.device, p.dtype))

    def of_tensor(name: str, shape: Shape) -> Plan:
        layout = lay_out(name, rule, h, shape, blocks(name), eps, division.cuts)
        if division is not WHOLE or replicas:
            parts = division.parts_along(len(shape))
            layout = sharded_layout(layout, parts, prod(len(axis.ranks) for axis in replicas))
        shapes, kept, elementwise = state_layout(rule, layout, len(shape))
        held = division.parts_here(layout, kept, replicas)
        return Plan(name, rule, h, shape, layout, held, shapes, kept, elementwise, p.dtype, division, (), replicas)

    return cast("Plan", division.plan(of_tensor, name, p))
