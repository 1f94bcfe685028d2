"""The cut of a tensor over processes, and the local parts of it and of its state."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from layerwise.engines import compiled
from layerwise.errors import GradientError, ParameterError, StateError
from layerwise.layout.pieces import Kept
from layerwise.storage.quantized_groups import GROUP
from layerwise.torch.sharding._flat import FlatBuffer, any_known, checked_flat_of, flat_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement

Shape = tuple[int, ...]


def is_dtensor(x: object) -> bool:
    """Return True for a DTensor; none exists before its module has been imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def local(x: Tensor) -> Tensor:
    """Return the local part of a tensor, after it has arrived."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or not isinstance(x, module.DTensor):
        return x
    wrapper: Any = x
    here: Any = wrapper._local_tensor  # autograd would record to_local()
    arrived: Tensor = here if type(here) is Tensor or not hasattr(here, "wait") else here.wait()
    # FSDP2 makes (0, 0) of (8, 0), the part of a tensor-parallel weight of which this rank has no column.
    if arrived.shape.count(0) < 2:
        return arrived
    cut = Cut(wrapper.device_mesh, wrapper.placements, ())
    return arrived.view([len(cut.local_indices(d, n)) for d, n in enumerate(x.shape)])


def like(value: Any, here: Tensor, added: Shape = ()) -> Tensor:
    """Return a local part in the form of `value`: a tensor, or a DTensor with its placements and dimensions `added`
    last.
    """
    if not is_dtensor(value):
        return here
    inner = prod(added)
    stride = (*(n * inner for n in value.stride()), *(prod(added[i + 1 :]) for i in range(len(added))))
    return _dtensor(here, value.device_mesh, value.placements, (*value.shape, *added), stride)


def _dtensor(here: Tensor, mesh: DeviceMesh, placements: tuple[Placement, ...], whole: Shape, stride: Shape) -> Tensor:
    """Return the DTensor of which this is the local part."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    # Not by from_local, which would move offloaded parts to the mesh's device.
    spec = DTensorSpec(mesh, placements, tensor_meta=TensorMeta(torch.Size(whole), stride, here.dtype))
    made: Any = DTensor
    wrapper: Tensor = made(here, spec, requires_grad=False)
    return wrapper


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


@dataclass(frozen=True)
class Cut:
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
        return _dtensor(here, self.mesh, self.along(kept), whole, stride)

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
        coordinate, sizes = list(self.mesh.get_coordinate()), self.mesh.shape
        cutting = [i for i, x in enumerate(self.placements) if not x.is_replicate() and sizes[i] > 1]
        for i, place in () if places is None else zip(cutting, places, strict=True):
            coordinate[i] = place
        found = np.arange(n)
        for i, x in enumerate(self.placements):
            if getattr(x, "dim", None) == dim:
                # A strided placement has an additional factor.
                factor = {"split_factor": x.split_factor} if hasattr(x, "split_factor") else {}
                found = found[_parts(type(x)(0, **factor), len(found), sizes[i])[coordinate[i]]]
        return cast("list[int]", found.tolist())

    def parts_along(self, ndim: int) -> Shape:
        """Return the number of parts along each dimension of the tensor."""
        return tuple(prod(len(axis.ranks) for axis, d in self.axes if d == dim) for dim in range(ndim))


@lru_cache(16)
def _parts(split: Any, n: int, count: int) -> list[np.ndarray]:
    """Return the indices of n entries that each of this many ranks has."""
    parts, _ = split._split_tensor(torch.arange(n, device="cpu"), count, with_padding=False, contiguous=False)
    return [part.numpy() for part in parts]


def placed(what: str, value: Any, mesh: DeviceMesh, placements: tuple[Placement, ...], way_out: str) -> Tensor:
    """Return a tensor cut in this way; raise if it lies on another mesh."""
    from torch.distributed.tensor import distribute_tensor

    if not is_dtensor(value):
        return distribute_tensor(value, mesh, placements, src_data_rank=None)
    if value.device_mesh != mesh:
        raise StateError(f"{what} lies on {value.device_mesh}, but the parameter lies on {mesh}. {way_out}")
    found: Tensor = value if value.placements == placements else value.redistribute(placements=placements)
    return found


def cut_of(name: str, p: Any) -> Cut | FlatBuffer | None:
    """Return the cut of a parameter, or the contents of a flat buffer; None if it is whole."""
    if not is_dtensor(p):
        return checked_flat_of(name, p)
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


def cuts_of(params: list[Tensor], names: Sequence[str]) -> list[Cut | FlatBuffer | None]:
    """Return the cuts of all of them; without known buffers, plain tensors are known to be whole."""
    if not any_known() and compiled.in_memory(params):
        return [None] * len(params)
    return list(map(cut_of, names, params))


def is_cut(p: Any) -> bool:
    """Return True if other processes hold other parts of a parameter, whether or not it can be stepped."""
    if is_dtensor(p):
        return any(not x.is_replicate() and n > 1 for x, n in zip(p.placements, p.device_mesh.shape, strict=True))
    flat = flat_of(p)
    return flat is not None and bool(flat.axes)


def axis_of(group: ProcessGroup | None, device_type: str = "", device: str = "") -> Axis:
    """Return the processes of a group, which exchange data on this device.

    Without it, the device is `device` if the group supports it, or the first that the group supports.
    """
    known = [one.partition(":")[0] for one in torch.distributed.get_backend_config(group).split(",")]
    device_type = device_type or (device if device in known else known[0])
    return Axis(tuple(torch.distributed.get_process_group_ranks(group)), group, device_type)


def check_alike(name: str, p: Any, g: Any) -> None:
    """Raise unless the gradient is cut over the same processes as its parameter, along any dimension."""
    if is_dtensor(p) != is_dtensor(g):
        ours, theirs = ("is", "is not") if is_dtensor(p) else ("is not", "is")
        raise GradientError(
            f"{name} {ours} a DTensor, but its gradient {theirs}. Pass both as DTensors on one mesh, or both as "
            "tensors."
        )
    if is_dtensor(p) and g.device_mesh != p.device_mesh:
        raise GradientError(
            f"{name} lies on {p.device_mesh}, but its gradient lies on {g.device_mesh}. Redistribute the gradient to "
            "the parameter's mesh."
        )


def local_parts(
    params: list[Tensor], grads: list[Tensor], agree: Callable[[Sequence[int]], None]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the local parts of parameters and gradients, the gradients laid out like their parameters if possible.

    Some may have to be redistributed, which takes collectives: `agree` gets their numbers before the first one.
    """
    each: Iterable[Any] = enumerate(zip(params, grads, strict=True))
    both = [(i, p, g) for i, (p, g) in each if is_dtensor(p) and is_dtensor(g) and g.device_mesh == p.device_mesh]
    elsewhere = [i for i, p, g in both if g.placements != p.placements]
    if elsewhere:
        agree(elsewhere)
        grads = list(grads)
        for i in elsewhere:
            p, g = cast("Any", params[i]), cast("Any", grads[i])
            grads[i] = g.redistribute(placements=p.placements)
    return list(map(local, params)), list(map(local, grads))


def axes_of(
    cuts: Sequence[Cut | FlatBuffer | None], copies: tuple[Axis, ...] = ()
) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """Return the axes along which tensors are cut, and those of replicas, in an order that is the same on all ranks."""
    found = [cut for cut in cuts if cut is not None]
    axes = dict.fromkeys(axis for cut in found for axis, _ in cut.axes)
    replicas = dict.fromkeys((*(x for cut in found for x in cut.replicas), *copies))
    return tuple(axes), tuple(x for x in replicas if x not in axes)


def replicas_of(cut: Cut | FlatBuffer | None, copies: Sequence[Axis]) -> tuple[Axis, ...]:
    """Return the axes over which a tensor is replicated. Processes with other parts of it have no copies."""
    if cut is None:
        return tuple(copies)
    others = {rank for axis in (*(axis for axis, _ in cut.axes), *cut.replicas) for rank in axis.ranks}
    return (*cut.replicas, *(axis for axis in copies if len(others.intersection(axis.ranks)) < 2))


def in_group() -> bool:
    """Return True if this process belongs to a process group, even one of its own."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def several_processes() -> bool:
    """Return True if this process is one of several."""
    return in_group() and torch.distributed.get_world_size() > 1
