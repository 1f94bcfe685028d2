"""The plan of one parameter's step: its layout, the places of its parts, and its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from layerwise.blocks import Blocks
from layerwise.core import plan
from layerwise.core.library import Library
from layerwise.core.plan import fields_of
from layerwise.errors import ParameterError, StateError
from layerwise.hyper import Hyper
from layerwise.layout import lay_out
from layerwise.storage.forms import scales_of
from layerwise.storage.index import Index, part_of
from layerwise.torch.sharding._cuts import Cut, check_alike, cuts_groups, held, is_dtensor, local
from layerwise.torch.sharding._flat import Flat
from layerwise.torch.sharding._forms import without_wrappers
from layerwise.torch.step._tensors import check_gradient, check_parameter

Shape = tuple[int, ...]
WAY_OUT = "Make the optimizer with the options it was saved with; layerwise.torch.convert reads other optimizers'."


@dataclass(frozen=True)
class Plan(plan.Plan):
    """The plan of one parameter's step, which may lie on several ranks or in a flat buffer."""

    name: str
    dtype: torch.dtype
    lies: Cut | Flat | None

    @property
    def key(self) -> str:
        return without_wrappers(self.name)

    @property
    def cut(self) -> Cut | None:
        return self.lies if isinstance(self.lies, Cut) else None

    @property
    def way_out(self) -> str:
        """The way out if a checkpoint does not fit."""
        return WAY_OUT

    def described(self) -> Any:
        """Return the part that must be the same on all ranks."""
        return self.name, self.h, tuple(self.shape), self.layout.pieces

    def in_words(self) -> Any:
        """Return the shape as ranks show it to one another."""
        return tuple(self.shape)

    def zeros(self, lib: Library, field: str, p: Tensor, dtype: str) -> Tensor:
        shape, kept = self.state_shapes[field], self.kept[field]
        if self.cut is None or shape is None or kept is None:
            return cast("Tensor", super().zeros(lib, field, p, dtype))
        alike = all(kept)
        made = lib.zeros_like(p, dtype) if alike else lib.zeros(self.cut.local_shape(shape, kept, p), dtype, p)
        return self.cut.wrapped(made, shape, kept, p.stride() if alike else None)

    def scales(self, lib: Library, p: Tensor) -> Tensor:
        if self.cut is None:
            return cast("Tensor", super().scales(lib, p))
        whole, here = scales_of(self.shape), scales_of(tuple(local(p).shape))
        kept = tuple(d < len(whole) for d in range(len(self.shape)))
        return self.cut.wrapped(lib.zeros(here, "float32", p), whole, kept)

    def index(self, p: Tensor) -> Index:
        cut = self.cut
        dims = {} if cut is None else {d: cut.local_indices(d, self.shape[d]) for d in {d for _, d in cut.axes}}
        return part_of(self.shape, dims)

    def why_not_grouped(self) -> str:
        return super().why_not_grouped() or ("" if self.cut is None else cuts_groups(self.cut, self.shape))

    def placed(self, key: str, value: Tensor) -> Tensor:
        """Return a loaded state, laid out as the plan requires."""
        from torch.distributed.tensor import distribute_tensor

        # What stands beside weights or state is cut as they are; scales have at most two dimensions.
        kept = self.kept.get(key, tuple(d < value.ndim for d in range(len(self.shape))))
        if self.cut is None or kept is None:
            if is_dtensor(value):
                raise StateError(
                    f"{key!r} of {self.name} is sharded, and the parameter is not. Load it through "
                    "torch.distributed.checkpoint, or pass the state's full_tensor()."
                )
            return value
        placements, loaded = self.cut.along(kept), value
        if not is_dtensor(value):
            return distribute_tensor(value, self.cut.mesh, placements, src_data_rank=None)
        spec: Any = value
        if spec.device_mesh != self.cut.mesh:
            raise StateError(
                f"{key!r} of {self.name} lies on {spec.device_mesh}, the parameter on {self.cut.mesh}. "
                "Load it through torch.distributed.checkpoint, which moves it."
            )
        if spec.placements != placements:
            loaded = spec.redistribute(placements=placements)
        return loaded


def check_step(name: str, p: Tensor, g: Tensor, differentiable: bool) -> None:
    """Raise unless the parameter can be stepped with this gradient."""
    check_parameter(name, p)
    check_gradient(name, p, g)
    if differentiable and p.is_leaf and p.requires_grad:
        raise ParameterError(
            f"{name} is a leaf that requires grad, which a differentiable step cannot write to. Step a clone of it."
        )
    check_alike(name, p, g)


def laid_out(
    rule: Any, shape: torch.Size, dtype: torch.dtype, h: Hyper, name: str, blocks: Blocks | None, cut: Cut | None
) -> Plan:
    """Return the plan of a tensor's step with these settings."""
    own, one_by_one = tuple(shape), (lambda axis: False) if cut is None else cut.cuts
    layout = lay_out(name, rule, h, own, blocks, torch.finfo(dtype).eps, one_by_one)
    return Plan(name, rule, h, own, layout, held(layout, cut), *fields_of(rule, layout, len(own)), dtype, cut)
