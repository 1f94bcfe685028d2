"""The cut of a tensor over processes, and the local parts of it and of its state."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from layerwise.engines import compiled
from layerwise.errors import GradientError, ParameterError, StateError
from layerwise.layout import Kept
from layerwise.storage.groups import GROUP
from layerwise.torch.sharding._flat import Flat, any_known, checked_flat_of, flat_of

Shape = tuple[int, ...]


def is_dtensor(x: Any) -> bool:
    """Return True for a DTensor; none exists before its module has been imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def local(x: Tensor) -> Tensor:
    """Return the local part of a tensor, once it has arrived."""
    if not is_dtensor(x):
        return x
    wrapper: Any = x
    here: Any = wrapper._local_tensor  # to_local() would be recorded by autograd
    arrived: Tensor = here if type(here) is Tensor or not hasattr(here, "wait") else here.wait()
    # FSDP2 takes (0, 0) of (8, 0), the part of a tensor parallel weight of which this rank has no column.
    return arrived.view(_local_shape(x)) if arrived.shape.count(0) > 1 else arrived


def _local_shape(x: Any) -> Shape:
    cut = Cut(x.device_mesh, tuple(x.placements), ())
    return tuple(len(cut.local_indices(d, n)) for d, n in enumerate(x.shape))


def like(value: Any, here: Tensor, added: Shape = ()) -> Any:
    """Return a local part in the form of `value`: a tensor, or a DTensor with its placements and dimensions `added`
    last.
    """
    if not is_dtensor(value):
        return here
    inner = prod(added)
    stride = (*(n * inner for n in value.stride()), *(prod(added[i + 1 :]) for i in range(len(added))))
    return _dtensor(here, value.device_mesh, value.placements, (*value.shape, *added), stride)


def _dtensor(here: Tensor, mesh: Any, placements: tuple[Any, ...], whole: Shape, stride: Shape) -> Tensor:
    """Return the DTensor of which this is the local part."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    # Not by from_local, which would bring what is offloaded to the mesh's device.
    spec = DTensorSpec(mesh, placements, tensor_meta=TensorMeta(torch.Size(whole), stride, here.dtype))
    made: Any = DTensor
    wrapper: Tensor = made(here, spec, requires_grad=False)
    return wrapper


@dataclass(frozen=True)
class Axis:
    """Processes that hold the parts of tensors between them: a dimension of a device mesh."""

    ranks: tuple[int, ...]
    group: Any = field(compare=False)
    device_type: str = field(compare=False)


@dataclass(frozen=True)
class Cut:
    """The division of a tensor: the processes, and the dimensions along which each holds a part."""

    mesh: Any
    placements: tuple[Any, ...]
    axes: tuple[tuple[Axis, int], ...]
    replicas: tuple[Axis, ...] = ()  # over which it is the same

    @property
    def parts(self) -> int:
        return prod(len(axis.ranks) for axis, _ in self.axes)

    @property
    def processes(self) -> int:
        n: int = self.mesh.size()
        return n

    def cuts(self, dim: int) -> bool:
        return any(d == dim for _, d in self.axes)

    def along(self, kept: Kept) -> tuple[Any, ...]:
        """Return the placements of a statistic that extends along some of the tensor's dimensions."""
        from torch.distributed.tensor import Replicate

        return tuple(x if x.is_replicate() or kept[_dim(x)] else Replicate() for x in self.placements)

    def local_shape(self, whole: Shape, kept: Kept, p: Tensor) -> Shape:
        """Return the shape of the local part of such a statistic."""
        here = local(p).shape
        return tuple(here[d] if kept[d] and self.cuts(d) else n for d, n in enumerate(whole))

    def wrapped(self, here: Tensor, whole: Shape, kept: Kept, stride: Shape | None = None) -> Tensor:
        """Return a statistic, or a state of the tensor's shape, of which this is the local part."""
        stride = torch.empty(whole, device="meta").stride() if stride is None else stride
        return _dtensor(here, self.mesh, self.along(kept), whole, stride)

    def why_not_grouped(self, shape: Shape) -> str:
        """Return the reason why this would divide groups of 8 bits, or an empty string."""
        parts: dict[int, int] = {}
        for axis, d in self.axes:
            parts[d] = parts.get(d, 1) * len(axis.ranks)
        scattered = any(hasattr(x, "split_factor") for x in self.placements)
        for d, n in parts.items():
            rows = d == 0 and len(shape) > 1
            row = prod(shape[1:]) if len(shape) > 1 else shape[0]
            even = d <= 1 and not scattered and shape[d] % n == 0 and row // n % GROUP == 0
            if not rows and not even:
                return f"its cut along dimension {d} over {n} processes would cut groups of {GROUP} elements"
        return ""

    def local_indices(self, dim: int, n: int) -> list[int]:
        """Return the indices along a dimension that this rank holds."""
        return self._indices(self.mesh.get_coordinate(), dim, n)

    def indices(self, places: Sequence[int], dim: int, n: int) -> list[int]:
        """Return the same of the rank at these places along the axes."""
        at, each = list(self.mesh.get_coordinate()), iter(places)
        for i, x in enumerate(self.placements):
            if not x.is_replicate() and self.mesh.size(i) > 1:
                at[i] = next(each)
        return self._indices(at, dim, n)

    def _indices(self, coordinate: Sequence[int], dim: int, n: int) -> list[int]:
        found = torch.arange(n)
        for i, x in enumerate(self.placements):
            if getattr(x, "dim", None) == dim:
                split: Any = _moved_to_first(x)
                parts, _ = split._split_tensor(found, self.mesh.size(i), with_padding=False, contiguous=False)
                found = parts[coordinate[i]]
        return cast("list[int]", found.tolist())

    def parts_along(self, ndim: int) -> Shape:
        """Return the number of parts along each dimension of the tensor."""
        return tuple(prod(len(axis.ranks) for axis, d in self.axes if d == dim) for dim in range(ndim))


def _dim(placement: Any) -> int:
    dim: int = placement.dim
    return dim


def _moved_to_first(placement: Any) -> Any:
    """Return the placement along the only dimension of a vector."""
    factor = getattr(placement, "split_factor", None)
    return type(placement)(0) if factor is None else type(placement)(0, split_factor=factor)


def placed(what: str, value: Any, mesh: Any, placements: tuple[Any, ...], way_out: str) -> Tensor:
    """Return a tensor cut in this way, or raise if it lies on another mesh."""
    from torch.distributed.tensor import distribute_tensor

    if not is_dtensor(value):
        return distribute_tensor(value, mesh, placements, src_data_rank=None)
    if value.device_mesh != mesh:
        raise StateError(f"{what} lies on {value.device_mesh}, the parameter on {mesh}. {way_out}")
    found: Tensor = value if value.placements == placements else value.redistribute(placements=placements)
    return found


def cut_of(name: str, p: Tensor) -> Cut | Flat | None:
    """Return the cut of a parameter, or the contents of a flat buffer; None if it is whole."""
    if not is_dtensor(p):
        return checked_flat_of(name, p)
    spec: Any = p
    mesh, placements = spec.device_mesh, tuple(spec.placements)
    for placement in placements:
        if not (placement.is_replicate() or hasattr(placement, "dim")):
            raise ParameterError(
                f"{name} must be sharded or replicated over its mesh, but is placed {placements}. "
                "Pass p.redistribute(placements=...) as the parameter."
            )
    if mesh.get_coordinate() is None:
        raise ParameterError(f"{name} lies on {mesh}, to which this process does not belong. Leave it out here.")
    axes = tuple(
        (_axis(mesh, i), placement.dim % p.ndim)
        for i, placement in enumerate(placements)
        if not placement.is_replicate() and mesh.size(i) > 1
    )
    replicas = tuple(_axis(mesh, i) for i, x in enumerate(placements) if x.is_replicate() and mesh.size(i) > 1)
    return Cut(mesh, placements, axes, replicas)


def cuts_of(params: list[Tensor], names: Sequence[str]) -> list[Cut | Flat | None]:
    """Return the same of all of them; of plain tensors where no buffer is known it is clear."""
    if not any_known() and compiled.in_memory(params):
        return [None] * len(params)
    return list(map(cut_of, names, params))


def is_cut(p: Tensor) -> bool:
    """Return True if other processes hold other parts of a parameter, whether or not it can be stepped."""
    if not is_dtensor(p):
        flat = flat_of(p)
        return flat is not None and bool(flat.axes)
    spec: Any = p
    mesh = spec.device_mesh
    return any(not placement.is_replicate() and mesh.size(i) > 1 for i, placement in enumerate(spec.placements))


def axis_of(group: Any) -> Axis:
    """Return the processes of a group."""
    device_type = torch.distributed.get_backend_config(group).partition(":")[0]
    return Axis(tuple(torch.distributed.get_process_group_ranks(group)), group, device_type)


def _axis(mesh: Any, i: int) -> Axis:
    group = mesh.get_group(i)
    return Axis(tuple(torch.distributed.get_process_group_ranks(group)), group, mesh.device_type)


def check_alike(name: str, p: Tensor, g: Tensor) -> None:
    """Raise unless the gradient is cut over the same processes as its parameter, along any dimension."""
    if is_dtensor(p) != is_dtensor(g):
        ours, theirs = ("is", "is not") if is_dtensor(p) else ("is not", "is")
        raise GradientError(
            f"{name} {ours} a DTensor, its gradient {theirs}. Pass both as DTensors of one mesh, or both as tensors."
        )
    spec_p: Any = p
    spec_g: Any = g
    if is_dtensor(p) and spec_g.device_mesh != spec_p.device_mesh:
        raise GradientError(
            f"{name} lies on {spec_p.device_mesh}, its gradient on {spec_g.device_mesh}. Bring it to the parameter's."
        )


def local_parts(
    params: list[Tensor], grads: list[Tensor], agree: Callable[[Sequence[int]], None]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the local parts of parameters and gradients, the gradients laid out like their parameters if possible.

    For that some may have to be redistributed, which takes collectives: `agree` gets their numbers before the first.
    """
    elsewhere = [i for i, (p, g) in enumerate(zip(params, grads, strict=True)) if _lies_elsewhere(p, g)]
    if elsewhere:
        agree(elsewhere)
        grads = list(grads)
        for i in elsewhere:
            p, g = cast("Any", params[i]), cast("Any", grads[i])
            grads[i] = g.redistribute(placements=p.placements)
    return list(map(local, params)), list(map(local, grads))


def _lies_elsewhere(p: Any, g: Any) -> bool:
    return is_dtensor(p) and is_dtensor(g) and bool(g.device_mesh == p.device_mesh and g.placements != p.placements)


def axes_of(cuts: Sequence[Cut | Flat | None]) -> tuple[tuple[Axis, ...], tuple[Axis, ...], Axis | None]:
    """Return the axes along which tensors are cut, and those of replicas, in an order that is the same on all ranks.

    The third is both together, if that is a process group already and every sum is the same on all replicas.
    """
    found = [cut for cut in cuts if cut is not None]
    axes = dict.fromkeys(axis for cut in found for axis, _ in cut.axes)
    replicas = tuple(dict.fromkeys(x for cut in found for x in cut.replicas if x not in axes))
    return tuple(axes), replicas, _joint(found, tuple(axes), replicas)


def in_group() -> bool:
    """Return True if this process belongs to a process group, even one of its own."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def several_processes() -> bool:
    """Return True if this process is one of several."""
    return in_group() and torch.distributed.get_world_size() > 1


def _joint(cuts: Sequence[Cut | Flat], axes: Sequence[Axis], replicas: Sequence[Axis]) -> Axis | None:
    world = torch.distributed.group.WORLD
    if len(axes) != 1 or len(replicas) != 1 or world is None:
        return None
    ranks = torch.distributed.get_process_group_ranks(world)
    each = [cut for cut in cuts if cut.axes]
    alike = all(cut.replicas == replicas and cut.processes == len(ranks) for cut in each)
    if not alike or len(axes[0].ranks) * len(replicas[0].ranks) != len(ranks):
        return None
    known = f"{axes[0].device_type}:" in torch.distributed.get_backend_config(world)
    return Axis(tuple(ranks), world, axes[0].device_type) if known else None
