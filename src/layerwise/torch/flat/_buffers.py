"""A flat buffer: the division of the tensors in it, its boxes as jobs, and states of whole tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import prod
from types import ModuleType
from typing import Any
from weakref import ReferenceType

import torch
import torch.distributed as dist
from torch import Tensor

from layerwise.core.plan import LocalPart, PartSlices, Places, Plan, Region
from layerwise.core.slot import own_entries
from layerwise.errors import ContradictionError, ParameterError, StateError
from layerwise.layout.pieces import Piece, piece_dims
from layerwise.rules.states import is_of_layer
from layerwise.torch.flat._boxes import Shape, SpreadTensor, Stretch, boxes_of, empty_box
from layerwise.torch.groups._members import State
from layerwise.torch.sharding._cuts import WHOLE, Axis, Division, cuttable_shape, division_of
from layerwise.torch.sharding._dtensors import CPU, on_host


@dataclass(frozen=True, eq=False)
class FlatBuffer(Division):
    """The contents of a flat buffer, on this rank and on the others of its group: a division of its tensors."""

    length: int
    spreads: tuple[SpreadTensor, ...]  # of which some rank has a part, in the same order on all ranks
    rank: int
    parts: int = 1
    axes: tuple[tuple[Axis, None], ...] = ()  # the axis over which tensors are cut anywhere
    replicas: tuple[Axis, ...] = ()
    beside: tuple[ReferenceType[Tensor], ...] = ()  # parameters that have gradients when this has one
    saved_whole: bool = False  # because nothing else distinguishes the ranks' parts in `state_dict()`

    @property
    def stretches(self) -> list[Stretch]:
        """The local stretches."""
        return [stretch for one in self.spreads for stretch in one.ranks[self.rank]]

    way_out = "Load whole tensors, and state of other ranks, with layerwise.torch.flat.load_full_state_dict."

    def check(self, name: str, p: Tensor) -> None:
        if p.ndim != 1 or p.numel() != self.length or not p.is_contiguous():
            raise ParameterError(
                f"{name} was described as a flat buffer of {self.length} elements in a row, but has the shape "
                f"{tuple(p.shape)}. Step while the model is sharded, or describe the buffer again with Segments."
            )

    def check_saved(self) -> None:
        """Raise for shards that nothing else gathers into whole tensors, or distinguishes by rank.

        torch.distributed.checkpoint takes what ranks hold for copies of the same tensor. FSDP1 itself fails at row and
        column statistics, which do not lie as the parameter does. On a CPU it gathers all states of a parameter into
        the same memory (use_orig_params=True), also those of torch.optim.Adam, so that exp_avg comes back as
        exp_avg_sq. Both ask like everybody, by `state_dict()`.
        """
        if self.saved_whole:
            raise StateError(
                "optimizer.state_dict() would contain this rank's part of flat shards, which PyTorch would take for "
                "whole tensors. Call layerwise.torch.flat.full_state_dict(optimizer) on all ranks, and "
                "load_full_state_dict() to load it."
            )

    def check_shown(self) -> None:
        raise ContradictionError(
            "the model's state_dict() does not show the weights in flat buffers. Use "
            "layerwise.torch.flat.full_state_dict to read what the optimizer keeps of them."
        )

    def check_observed(self, name: str) -> None:
        raise ParameterError(
            f"{name} is a flat shard: its gradient cannot be observed in the backward pass. Measure "
            "under DistributedDataParallel or torch.distributed.fsdp.fully_shard (FSDP2)."
        )

    def names(self, name: str) -> list[str]:
        return [one.name for one in self.spreads]

    def whole_shape(self, p: Tensor) -> Shape:
        return self.spreads[0].shape if len(self.spreads) == 1 else super().whole_shape(p)

    def numbers(self, x: Tensor) -> list[Tensor]:
        return [elements(one, x) for one in self.stretches]

    def missing_gradient(self, p: Tensor) -> Tensor | None:
        """Return an empty gradient for a buffer without elements, if ranks with elements have gradients."""
        if not self.beside or not p.requires_grad or self.stretches:
            return None
        alive = [x for x in (one() for one in self.beside) if x is not None]
        flats = map(division_of, alive)
        nowhere = all(isinstance(one, FlatBuffer) and not one.stretches for one in flats)  # only others can have one
        return torch.zeros_like(p) if nowhere or any(x.grad is not None for x in alive) else None

    def plan(self, plan_of: Callable[[str, Shape], Any], name: str, p: Tensor) -> Any:
        members = tuple(replace(plan_of(one.name, one.shape), division=WHOLE) for one in self.spreads)
        first, rule = members[0], members[0].rule
        held, lengths = parts_in_buffer(rule, members, self)
        keys = rule.State._fields
        there = {key for key in keys if any(one.state_shapes[key] is not None for one in members)}
        shapes = {key: (lengths.get(key, self.length),) if key in there else None for key in keys}
        kept, elementwise = dict.fromkeys(keys, (True,)), {key: key not in lengths for key in keys}
        own: dict[str, Any] = {"name": name, "shape": tuple(p.shape), "held": held, "tensors": members}
        return replace(first, **own, state_shapes=shapes, kept=kept, elementwise=elementwise, division=self)

    def described(self) -> tuple[object, ...]:
        each = [(one.name, one.shape, [[stretch[2:4] for stretch in own] for own in one.ranks]) for one in self.spreads]
        return tuple(each)

    def parts_along(self, ndim: int) -> None:
        return None

    def why_not_grouped(self, shape: Shape) -> str:
        return "stretches of a flat buffer begin and end inside groups"

    def whole_states(self, plan: Plan, state: Mapping[str, Any]) -> dict[str, State]:
        """Return the states of the tensors in a buffer, whole and by name. All ranks call this together.

        Another program's entry is divided if it has the buffer's shape; otherwise it is each tensor's.
        """
        divided = {**own_entries(state), **{key: x for key, x in state.items() if _has_shape(x, plan.shape)}}
        divided.pop("step", None)
        of_each = {key: on_host(x) if isinstance(x, Tensor) else x for key, x in state.items() if key not in divided}
        found: list[State] = [
            {
                **deepcopy(of_each),
                **{
                    key: torch.zeros(shape, dtype=x.dtype)
                    for key, x in divided.items()
                    if (shape := one.state_shapes.get(key, one.shape)) is not None
                },
            }
            for one in plan.stored_together
        ]
        mine = [
            (one.member, one.number, one.box, key, one.view(state[key], key).detach().to(CPU, copy=True))
            for one in plan.held
            for key in found[one.member].keys() & divided.keys()
        ]
        said: list[Any] = [mine]
        for axis, _ in self.axes:
            said = [None] * self.parts
            dist.all_gather_object(said, mine, group=axis.group)
        for member, number, box, key, part in chain.from_iterable(said):
            piece = plan.stored_together[member].layout.pieces[number]
            _of_whole(piece, box, found[member][key], part.shape).copy_(part)
        return {str(one.name): own for one, own in zip(plan.stored_together, found, strict=True)}


def elements(stretch: Stretch, buffer: Tensor) -> Tensor:
    """Return a stretch's part of a buffer, or of a tensor with the same layout."""
    at = stretch.offset or 0
    return buffer[at : at + stretch.end - stretch.start]


def parts_in_buffer(
    rule: ModuleType, members: Sequence[Plan], flat: FlatBuffer
) -> tuple[tuple[LocalPart, ...], dict[str, int]]:
    """Return the boxes in this rank's buffer, each of which is a job, and the lengths of state that lies box by box.

    A state that has a number for each element of all tensors of a buffer lies as the buffer does. Any other is the
    boxes' parts of it, one after the other: of row statistics those of the box's rows, of column statistics those of
    its columns. So every rank that holds a part of a row has that row's number.
    """
    lengths = {key: 0 for key in rule.State._fields if not all(one.elementwise[key] for one in members)}
    found: list[LocalPart] = []
    for i, (plan, spread) in enumerate(zip(members, flat.spreads, strict=True)):
        for number, piece in enumerate(plan.layout.pieces):
            each = [one for stretch in spread.ranks[flat.rank] for one in boxes_of(piece, stretch)]
            for box, place in each or [empty_box(piece)]:
                starts = ((box.origin[d], box.size[d]) for d in sorted(piece.block_dims))
                blocks = tuple(list(range(at, at + n)) for at, n in starts)
                where = (
                    flat.axes,
                    cuttable_shape(piece),
                    flat.parts,
                    blocks,
                    place,
                    _places(rule, piece, box.size, lengths),
                )
                regions = partial(_regions_of_boxes, piece, spread)
                found.append(LocalPart(piece, number, i, *where, box, spread, regions, flat.replicas))
    return tuple(found), lengths


def _regions_of_boxes(piece: Piece, spread: SpreadTensor, places: Places, dims: Shape) -> list[Region]:
    """Return the part of a piece on the rank at this place of the group."""
    boxes = [box for stretch in spread.ranks[places[0]] for box, _ in boxes_of(piece, stretch)]
    return [box.region for box in boxes]


def _places(rule: ModuleType, piece: Piece, size: Shape, lengths: dict[str, int]) -> dict[str, PartSlices]:
    """Return the places of a box's parts of the state, and count them."""
    places = {}
    for key, extends in zip(rule.State._fields, piece_dims(rule, piece), strict=True):
        if key in lengths and extends is not None:
            each = zip(size, extends or (not is_of_layer(rule, key),), strict=True)
            shape = tuple(n if along else 1 for n, along in each)
            places[key] = PartSlices((), slice(lengths[key], lengths[key] + prod(shape)), shape)
            lengths[key] += prod(shape)
    return places


def _has_shape(x: object, shape: Shape) -> bool:
    return isinstance(x, Tensor) and tuple(x.shape) == shape


def local_entry(plan: Plan, p: Tensor, key: str, whole: Mapping[str, Tensor]) -> Tensor:
    """Return a buffer's part of another program's entry, or the entry, given those of whole tensors by name."""
    shapes = {str(one.name): one.shape for one in plan.stored_together}
    parts = all(_has_shape(x, shapes[name]) for name, x in whole.items())
    return local_state(plan, p, key, whole) if parts else next(iter(whole.values()))


def local_state(plan: Plan, p: Tensor, key: str, whole: Mapping[str, Tensor]) -> Tensor:
    """Return a buffer's part of a state, given that of whole tensors by name."""
    dtypes = {x.dtype for x in whole.values()}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    values = torch.zeros(plan.state_shapes.get(key) or tuple(p.shape), dtype=dtype, device=p.device)
    for one in plan.held:
        name = str(plan.stored_together[one.member].name)
        if name in whole:
            part = one.view(values, key)
            part.copy_(_of_whole(one.piece, one.box, whole[name], part.shape))
    return values


def _of_whole(piece: Piece, box: Any, whole: Tensor, size: Shape) -> Tensor:
    """Return a box's part, of this size, of a whole tensor, or of a state of it."""
    seen: Tensor = piece.view(whole)
    found: Tensor = box.take_from(seen.reshape(tuple(seen.shape) or (1,)), size)
    return found
