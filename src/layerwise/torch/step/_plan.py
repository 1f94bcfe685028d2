"""The plan of one parameter's step: its layout, the places of its parts, and its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from layerwise.blocks import Blocks
from layerwise.engines import Job
from layerwise.errors import ParameterError, StateError
from layerwise.hyper import Hyper
from layerwise.layout import Kept, Layout, elementwise, kept_dims, lay_out
from layerwise.storage import Storage
from layerwise.telemetry import summary
from layerwise.torch.sharding._cuts import Cut, Held, check_alike, held, is_dtensor, local
from layerwise.torch.sharding._flat import Flat
from layerwise.torch.step._tensors import check_gradient, check_parameter

Shape = tuple[int, ...]
WAY_OUT = "Make the optimizer with the options it was saved with; layerwise.torch.convert reads other optimizers'."


@dataclass(frozen=True)
class Plan:
    """The plan of one parameter's step."""

    name: str
    rule: Any
    h: Hyper
    shape: torch.Size
    dtype: torch.dtype
    layout: Layout
    lies: Cut | Flat | None  # on several ranks, or in a flat buffer
    held: tuple[Held, ...]
    state_shapes: dict[str, Shape | None]  # of the whole of it
    kept: dict[str, Kept | None]
    elementwise: dict[str, bool]  # whether a part of the state has a number for each element

    @property
    def cut(self) -> Cut | None:
        return self.lies if isinstance(self.lies, Cut) else None

    @property
    def itself(self) -> bool:
        """True if the unchanged parameter is the only job."""
        return len(self.held) == 1 and self.layout.pieces[0].part is None

    @property
    def smallest(self) -> Shape:
        """The shape of the smallest tensor that is stored together."""
        return tuple(self.shape)

    @property
    def way_out(self) -> str:
        """The way out if a checkpoint does not fit."""
        return WAY_OUT

    def member(self, one: Any) -> Plan:
        """Return the plan of the tensor that this is a part of."""
        return self

    def described(self) -> Any:
        """Return the part that must be the same on all ranks."""
        return self.name, self.h, tuple(self.shape), self.layout.pieces

    def in_words(self) -> Any:
        """Return the shape as ranks show it to one another."""
        return tuple(self.shape)

    def zeros(self, key: str, p: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a new state."""
        shape, kept = self.state_shapes[key], self.kept[key]
        if shape is None or kept is None:
            raise KeyError(key)
        alike, here = all(kept), local(p)
        size = shape if self.cut is None else self.cut.local_shape(shape, kept, p)
        made = (
            torch.zeros_like(here, dtype=dtype, memory_format=torch.preserve_format, requires_grad=False)
            if alike
            else torch.zeros(size, dtype=dtype, device=here.device)
        )
        return made if self.cut is None else self.cut.wrapped(made, shape, kept, p.stride() if alike else None)

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

    def jobs(self, p: Tensor, state: Mapping[str, Any], storage: Callable[[Held], Storage | None]) -> Iterator[Job]:
        """Yield the jobs of the parameter for an engine."""
        stored = {key: local(state[key]) for key, shape in self.state_shapes.items() if shape is not None}
        stepped = local(state.get("master", p))
        for one in self.held:
            part = one.piece.part
            fields = []
            for key, kept in self.kept.items():
                along = kept is None or part is None or kept[part.axis]
                fields.append(None if kept is None else one.view(stored[key], along))
            made, cut = self.rule.State(*fields), (one.axes, None if one.along is None else part)
            where = one.piece.block_dims, one.shape, one.parts, cut
            yield Job(self.rule, one.piece.h, one.view(stepped), made, *where, storage(one))

    def measured(self, each: Iterator[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the names of tensors with the jobs' measurements of them."""
        yield self.name, summary([one.everywhere(next(each)) for one in self.held], self.layout.pieces)


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
    machine_eps = torch.finfo(dtype).eps
    layout = lay_out(
        name, rule, h, tuple(shape), blocks, machine_eps, (lambda axis: False) if cut is None else cut.cuts
    )
    fields = rule.State._fields
    shapes = dict(zip(fields, layout.state_shapes(), strict=True))
    kept = dict(zip(fields, kept_dims(rule, layout, len(shape)), strict=True))
    alike = elementwise(rule, layout, len(shape))
    return Plan(name, rule, h, shape, dtype, layout, cut, held(layout, cut), shapes, kept, alike)
