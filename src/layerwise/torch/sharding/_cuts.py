"""The division of tensors over processes: whole, cut along dimensions, or as another folder describes it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from layerwise.core.plan import LocalPart, PartSlices, Places, Plan, Region
from layerwise.engines import compiled
from layerwise.errors import ParameterError
from layerwise.layout.pieces import Kept, Layout, Piece
from layerwise.storage.quantized_groups import GROUP
from layerwise.torch.sharding._dtensors import dtensor, is_dtensor, local, local_indices, on_host

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import Placement

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Axis:
    """Processes that together hold the parts of tensors: a dimension of a device mesh."""

    ranks: tuple[int, ...]
    group: ProcessGroup | None = field(compare=False)
    device_type: str = field(compare=False)

    @cached_property
    def senders(self) -> int:
        """The number of processes in an all-reduce; in a dry run on a fake group it is 1."""
        fake = self.group is not None and torch.distributed.get_backend(self.group) == "fake"
        return 1 if fake else len(self.ranks)


def ranks_named(ranks: Sequence[int]) -> str:
    """Return these processes in words for an error; of many, the first few."""
    if len(ranks) > 8:
        everyone = in_group() and len(ranks) == torch.distributed.get_world_size()
        few = "" if everyone else f" ({', '.join(map(str, ranks[:4]))}, …)"
        return f"{'all ' if everyone else ''}{len(ranks):,} ranks{few}"
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


class Division:
    """The division of a parameter over processes, which is asked what it means for a step; here it is whole."""

    axes: tuple[tuple[Axis, int | None], ...] = ()  # along a dimension of it, or anywhere
    replicas: tuple[Axis, ...] = ()  # the axes over which it is replicated
    way_out = "Load a checkpoint of the same model, saved with the same options."

    # ---- the parameter

    def check(self, name: str, p: Tensor) -> None:
        """Raise if the parameter of this name is not what it was described as."""

    def check_saved(self) -> None:
        """Raise if `state_dict()` would mislead whoever puts ranks' states together."""

    def check_shown(self) -> None:
        """Raise if the model's `state_dict()` does not show the weights."""

    def check_observed(self, name: str) -> None:
        """Raise if hooks of the parameter do not get its gradient."""

    def names(self, name: str) -> list[str]:
        """Return the names of the tensors of which a parameter of this name holds parts."""
        return [name]

    def whole_shape(self, p: Tensor) -> Shape:
        """Return the shape of the tensor of which a parameter is a part."""
        return tuple(getattr(p, "ds_shape", p.shape))  # all that DeepSpeed's ZeRO-3 leaves in it is this note

    def numbers(self, x: Tensor) -> list[Tensor]:
        """Return the parts of a gradient that hold numbers of tensors."""
        return [x]

    def missing_gradient(self, p: Tensor) -> Tensor | None:
        """Return an empty gradient, if other ranks have one of their parts."""

    # ---- its plan

    def plan(self, plan_of: Callable[[str, Shape], Any], name: str, p: Tensor) -> Any:
        """Return the plan of a parameter, given how that of a tensor is made."""
        return plan_of(name, tuple(p.shape))

    def described(self) -> Hashable:
        """Return the data that must be the same on all ranks, besides the plan's."""

    def cuts(self, dim: int) -> bool:
        """Return True if a dimension is cut."""
        return False

    def parts_along(self, ndim: int) -> Shape | None:
        """Return the number of parts along each dimension of a tensor; None if it is cut anywhere."""
        return (1,) * ndim

    def parts_here(
        self, layout: Layout, kept: Mapping[str, Kept | None], replicas: tuple[Axis, ...]
    ) -> tuple[LocalPart, ...]:
        """Return the local parts of a tensor's pieces."""
        return tuple(LocalPart(piece, i, replicas=replicas) for i, piece in enumerate(layout.pieces))

    def why_not_grouped(self, shape: Shape) -> str:
        """Return the reason why this would split groups of 8 bits, or an empty string."""
        return ""

    def whole_states(self, plan: Plan, state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the state of each whole tensor by name, in host memory. All ranks call this together."""
        return {str(plan.name): {key: on_host(x) if isinstance(x, Tensor) else x for key, x in state.items()}}


WHOLE = Division()


class _Forgotten(Division):
    """That of a copy, which may be on another rank."""

    def check(self, name: str, p: Tensor) -> None:
        raise ParameterError(
            f"{name} is a copy of a flat buffer, and does not say what it holds. Describe it with "
            "layerwise.torch.Segments, as the original buffer."
        )


CHANGES = [0]
"""The number of times that descriptions were added or replaced in this process."""
_described: MutableMapping[Tensor, Division] = WeakTensorKeyDictionary()


def describe(p: Tensor, division: Division) -> None:
    """Remember the division of a parameter that does not show it, for as long as the parameter exists."""
    _described[p] = division
    CHANGES[0] += 1


def forget(p: Tensor) -> None:
    """Record that this is the copy of a described parameter, unless it was described by itself."""
    _described.setdefault(p, _Forgotten())


def is_described(p: Tensor) -> bool:
    """Return True if a parameter was described, even as whole."""
    return bool(_described) and p in _described


def division_of(p: Tensor) -> Division:
    """Return the division of a parameter that is no DTensor."""
    return _described.get(p, WHOLE) if _described else WHOLE


@dataclass(frozen=True)
class Cut(Division):
    """The division of a tensor: the processes, and the dimensions along which each holds a part."""

    mesh: Any
    placements: tuple[Any, ...]
    axes: tuple[tuple[Axis, int], ...]
    replicas: tuple[Axis, ...] = ()  # the axes over which it is replicated

    @property
    def parts(self) -> int:
        return prod(len(axis.ranks) for axis, _ in self.axes)

    def cuts(self, dim: int) -> bool:
        return any(d == dim for _, d in self.axes)

    def along(self, kept: Kept) -> tuple[Placement, ...]:
        """Return the placements of a statistic that extends along some of the tensor's dimensions."""
        from torch.distributed.tensor import Replicate

        return tuple(x if x.is_replicate() or kept[x.dim] else Replicate() for x in self.placements)

    def local_shape(self, whole: Shape, kept: Kept, p: Tensor) -> Shape:
        """Return the shape of the local part of such a statistic."""
        here = local(p).shape
        return tuple(here[d] if kept[d] and self.cuts(d) else n for d, n in enumerate(whole))

    def wrapped(self, here: Tensor, whole: Shape, kept: Kept, stride: Shape | None = None) -> Tensor:
        """Return a statistic, or a state of the tensor's shape, with this local part."""
        stride = torch.empty(whole, device="meta").stride() if stride is None else stride
        return dtensor(here, self.mesh, self.along(kept), whole, stride)

    def why_not_grouped(self, shape: Shape) -> str:
        """Return the reason why this would split groups of 8 bits, or an empty string."""
        scattered = any(hasattr(x, "split_factor") for x in self.placements)
        for d, n in enumerate(self.parts_along(len(shape))):
            rows = d == 0 and len(shape) > 1
            row = prod(shape[1:]) if len(shape) > 1 else shape[0]
            even = d <= 1 and not scattered and shape[d] % n == 0 and row // n % GROUP == 0
            if n > 1 and not rows and not even:
                return f"sharding dimension {d} over {n} processes would split groups of {GROUP} elements"
        return ""

    def local_indices(self, dim: int, n: int, places: Sequence[int] | None = None) -> list[int]:
        """Return the indices along a dimension that this rank holds, or the rank at these places along the axes."""
        return local_indices(self.mesh, self.placements, dim, n, places)

    def parts_along(self, ndim: int) -> Shape:
        """Return the number of parts along each dimension of the tensor."""
        return tuple(prod(len(axis.ranks) for axis, d in self.axes if d == dim) for dim in range(ndim))

    def parts_here(
        self, layout: Layout, kept: Mapping[str, Kept | None], replicas: tuple[Axis, ...]
    ) -> tuple[LocalPart, ...]:
        """Return the local parts of a tensor's pieces. Every rank has all blocks along a cut axis, some empty."""
        if not self.axes:
            return super().parts_here(layout, kept, replicas)
        return tuple(_part_here(piece, i, kept, self) for i, piece in enumerate(layout.pieces))


def _part_here(piece: Piece, number: int, kept: Mapping[str, Kept | None], cut: Cut) -> LocalPart:
    part, axes, place, places = piece.part, cut.axes, None, dict[str, PartSlices]()
    blocks: tuple[list[int], ...] = ()
    if part is not None and part.one is not None and cut.cuts(part.axis):
        i, start, end, length = part.one
        here = [at for at, entry in enumerate(cut.local_indices(part.axis, length)) if start <= entry < end]
        before = (slice(None),) * part.axis
        place = PartSlices((*before, slice(here[0], here[-1] + 1) if here else slice(0, 0)))
        one = PartSlices((*before, slice(i, i + 1)))  # of a statistic with a number for each block
        places = {key: one for key, extends in kept.items() if extends is not None and not extends[part.axis]}
    elif part is not None and part.drop and any(map(cut.cuts, part.dims())):
        blocks = tuple(cut.local_indices(d, piece.shape[d]) for d in sorted(part.dims()))
    elif part is not None and part.one is None and not part.drop:
        axes = tuple((axis, d + (d > part.axis)) for axis, d in axes)
    where = axes, piece.shape, cut.parts, blocks, place, places
    regions = partial(_regions_of_cut, piece, cut, tuple(d for _, d in axes))
    return LocalPart(piece, number, 0, *where, regions=regions, replicas=cut.replicas)


def _regions_of_cut(piece: Piece, cut: Cut, own: Shape, places: Places, dims: Shape) -> list[Region]:
    """Return the part of a piece on the rank at these places along the axes, which cut these dimensions of it."""
    part, each = piece.part, list[Sequence[int]](range(n) for n in piece.shape)
    for (_, d), dim in zip(cut.axes, own, strict=True):
        if part is not None and part.one is not None and d == part.axis:
            _, start, end, length = part.one
            each[dim] = [i - start for i in cut.local_indices(d, length, places) if start <= i < end]
        else:
            each[dim] = cut.local_indices(d, piece.shape[dim], places)
    each = [some if d in dims else range(len(some)) for d, some in enumerate(each)]
    runs = [range(some[0], some[0] + len(some)) if some else range(0) for some in each]
    if all(some == run or list(some) == list(run) for some, run in zip(each, runs, strict=True)):
        return [tuple(slice(run.start, run.stop) for run in runs)]
    return [torch.meshgrid(*(torch.tensor(some, dtype=torch.long) for some in each), indexing="ij")]


def whole_shape(p: Tensor) -> Shape:
    """Return the shape of a parameter, or of the tensor of which it is a part."""
    return division_of(p).whole_shape(p)


def numbers_of(params: Sequence[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """Return the parts of gradients that hold numbers of tensors."""
    if not _described:
        return grads
    return [x for p, g in zip(params, grads, strict=True) for x in division_of(p).numbers(g)]


def cut_of(name: str, p: Any) -> Division:
    """Return the division of a parameter of this name; raise if its parts cannot be stepped."""
    if not is_dtensor(p):
        division_of(p).check(name, p)
        return division_of(p)
    mesh, placements = p.device_mesh, tuple(p.placements)
    if not all(x.is_replicate() or hasattr(x, "dim") for x in placements):
        raise ParameterError(
            f"{name} must be sharded or replicated over its mesh, but is placed {placements}. "
            "Pass p.redistribute(placements=...) as the parameter."
        )
    if mesh.get_coordinate() is None:
        raise ParameterError(f"{name} lies on {mesh}, which does not include this process. Leave it out here.")
    each = [(axis_of(mesh.get_group(i), mesh.device_type), x) for i, x in enumerate(placements) if mesh.size(i) > 1]
    axes = tuple((axis, x.dim % p.ndim) for axis, x in each if not x.is_replicate())
    return Cut(mesh, placements, axes, tuple(axis for axis, x in each if x.is_replicate()))


def cuts_of(params: list[Tensor], names: Sequence[str]) -> list[Division]:
    """Return the divisions of all of them; if none was described, plain tensors are known to be whole."""
    if not _described and compiled.in_memory(params):
        return [WHOLE] * len(params)
    return list(map(cut_of, names, params))


def is_cut(p: Any) -> bool:
    """Return True if other processes hold other parts of a parameter, whether or not it can be stepped."""
    if is_dtensor(p):
        return any(not x.is_replicate() and n > 1 for x, n in zip(p.placements, p.device_mesh.shape, strict=True))
    return bool(division_of(p).axes)


def axis_of(group: ProcessGroup | None, device_type: str = "", device: str = "") -> Axis:
    """Return the processes of a group, which exchange data on this device.

    Without it, the device is `device` if the group supports it, or the first that the group supports.
    """
    known = [one.partition(":")[0] for one in torch.distributed.get_backend_config(group).split(",")]
    device_type = device_type or (device if device in known else known[0])
    return Axis(tuple(torch.distributed.get_process_group_ranks(group)), group, device_type)


def axes_of(cuts: Sequence[Division], copies: tuple[Axis, ...] = ()) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """Return the axes along which tensors are cut, and those of replicas, in an order that is the same on all ranks."""
    found = {id(cut): cut for cut in cuts}.values()
    axes = dict.fromkeys(axis for cut in found for axis, _ in cut.axes)
    replicas = dict.fromkeys((*(x for cut in found for x in cut.replicas), *copies))
    return tuple(axes), tuple(x for x in replicas if x not in axes)


def replicas_of(cut: Division, copies: Sequence[Axis]) -> tuple[Axis, ...]:
    """Return the axes over which a tensor is replicated. Processes with other parts of it have no copies."""
    others = {rank for axis in (*(axis for axis, _ in cut.axes), *cut.replicas) for rank in axis.ranks}
    return (*cut.replicas, *(axis for axis in copies if len(others.intersection(axis.ranks)) < 2))


def cuttable_shape(piece: Piece) -> Shape:
    """Return the shape of a piece; without dimensions, it gets one that can be cut."""
    return piece.shape or (1,)


def in_group() -> bool:
    """Return True if this process belongs to a process group, even one of its own."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def several_processes() -> bool:
    """Return True if this process is one of several."""
    return in_group() and torch.distributed.get_world_size() > 1
