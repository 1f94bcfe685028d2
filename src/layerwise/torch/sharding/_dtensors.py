"""DTensors: their local parts, what is laid out like them, and gradients in other placements."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from layerwise.errors import GradientError, StateError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement

Shape = tuple[int, ...]
CPU = torch.device("cpu")


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
    where = wrapper.device_mesh, wrapper.placements
    return arrived.view([len(local_indices(*where, d, n)) for d, n in enumerate(x.shape)])


def like(value: Any, here: Tensor, added: Shape = ()) -> Tensor:
    """Return a local part in the form of `value`: a tensor, or a DTensor with its placements and dimensions `added`
    last.
    """
    if not is_dtensor(value):
        return here
    inner = prod(added)
    stride = (*(n * inner for n in value.stride()), *(prod(added[i + 1 :]) for i in range(len(added))))
    return dtensor(here, value.device_mesh, value.placements, (*value.shape, *added), stride)


def dtensor(here: Tensor, mesh: DeviceMesh, placements: tuple[Placement, ...], whole: Shape, stride: Shape) -> Tensor:
    """Return the DTensor of which this is the local part."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    # Not by from_local, which would move offloaded parts to the mesh's device.
    spec = DTensorSpec(mesh, placements, tensor_meta=TensorMeta(torch.Size(whole), stride, here.dtype))
    made: Any = DTensor
    wrapper: Tensor = made(here, spec, requires_grad=False)
    return wrapper


def on_host(x: Any) -> Tensor:
    """Return a whole tensor in host memory; for a DTensor all ranks call this together."""
    whole: Tensor = x.full_tensor() if is_dtensor(x) else x
    return whole.detach().to(CPU, copy=True)


def local_indices(
    mesh: Any, placements: Sequence[Any], dim: int, n: int, places: Sequence[int] | None = None
) -> list[int]:
    """Return the indices along a dimension that this rank holds, or the rank at these places along the axes."""
    coordinate, sizes = list(mesh.get_coordinate()), mesh.shape
    cutting = [i for i, x in enumerate(placements) if not x.is_replicate() and sizes[i] > 1]
    for i, place in () if places is None else zip(cutting, places, strict=True):
        coordinate[i] = place
    found = np.arange(n)
    for i, x in enumerate(placements):
        if getattr(x, "dim", None) == dim:
            # A strided placement has an additional factor.
            factor = {"split_factor": x.split_factor} if hasattr(x, "split_factor") else {}
            found = found[_parts(type(x)(0, **factor), len(found), sizes[i])[coordinate[i]]]
    return cast("list[int]", found.tolist())


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


def check_alike(name: str, p: Any, g: Any) -> None:
    """Raise unless the gradient is cut over the same processes as its parameter, along any dimension."""
    cut = is_dtensor(p)
    if cut != is_dtensor(g):
        ours, theirs = ("is", "is not") if cut else ("is not", "is")
        raise GradientError(
            f"{name} {ours} a DTensor, but its gradient {theirs}. Pass both as DTensors on one mesh, or both as "
            "tensors."
        )
    if cut and g.device_mesh != p.device_mesh:
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
