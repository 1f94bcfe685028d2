"""What people wrap a model in to train it on many ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from sharding.flats import whole_of
from sharding.layouts import mesh_of
from sharding.models import BUSY, named, whole
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from layerwise.torch import flat
from layerwise.torch.sharding._cuts import division_of

Wrap = Callable[[Any], Any]


def fsdp2(model: Any, mesh: DeviceMesh | None = None, **options: Any) -> Any:
    """Each block by itself, then the rest, as the documentation of FSDP2 has it."""
    mesh = mesh_of(dist.get_world_size()) if mesh is None else mesh
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def low_precision(model: Any) -> Any:
    return fsdp2(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def offloaded(model: Any) -> Any:
    """To the host's memory; without an accelerator it is there already, and cannot be pinned."""
    policy: OffloadPolicy = CPUOffloadPolicy(pin_memory=False)
    return fsdp2(model, offload_policy=policy)


def tensor_parallel(model: Any, mesh: DeviceMesh | None = None) -> Any:
    """The blocks' first matrices by columns of the product, the second ones by rows; the rest is not touched."""
    mesh = mesh_of(dist.get_world_size()) if mesh is None else mesh
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def both(model: Any) -> Any:
    mesh = mesh_of(2, dist.get_world_size() // 2)
    return fsdp2(tensor_parallel(model, mesh["inner"]), mesh["outer"])


def replicated(model: Any) -> Any:
    return DistributedDataParallel(model)


def fsdp1(model: Any, nested: bool = False, described: bool = True, **options: Any) -> Any:
    """In flat pieces, which it describes."""
    options = {"use_orig_params": True, "device_id": torch.device("cpu"), **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # that it is to be replaced by FSDP2
        for i, block in enumerate(model.blocks if nested else ()):
            model.blocks[i] = FullyShardedDataParallel(block, **options)
        wrapped = FullyShardedDataParallel(model, **options)
    if described:
        flat.from_fsdp1(wrapped)
    return wrapped


def fsdp1_hybrid(model: Any) -> Any:
    mesh = mesh_of(2, dist.get_world_size() // 2)
    return fsdp1(model, nested=True, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD)


def fsdp1_low_precision(model: Any) -> Any:
    return fsdp1(model, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


@contextmanager
def unsharded(model: nn.Module) -> Iterator[None]:
    """While parameters and gradients of FSDP1 are whole; all others know by themselves that they are not."""
    if not isinstance(model, FullyShardedDataParallel) or not model._use_orig_params:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        with FullyShardedDataParallel.summon_full_params(model, with_grads=True, writeback=False):
            yield


def gathered(model: nn.Module, of: Callable[[Any], Any]) -> dict[str, Any]:
    """Weights or gradients by name, whole."""
    found = {}
    with unsharded(model):
        for name, p in named(model).items():
            # Flat parameters of FSDP1 have no whole gradients there.
            known = division_of(p) if name.endswith("_flat_param") else None
            each = {name: of(p)} if known is None else whole_of(known, of(p).detach())
            found.update({one: whole(x) for one, x in each.items()})
    return found


def batches(steps: int) -> list[torch.Tensor]:
    return [torch.randint(13, (4, 6), generator=torch.Generator().manual_seed(i)) for i in range(steps)]


def optimizer_of(front: Any, model: Any, options: Mapping[str, Any], zero: bool = False) -> Any:
    """With `zero`, each rank steps some of the parameters and sends them to all."""
    params, more = list(named(model).items()), {**BUSY[front], **options}
    if not zero:
        return front(params, **more)
    more["model_group"] = torch.distributed.group.WORLD
    tensors = [p for _, p in params]
    return zero_redundancy()(front.groups(tensors) if hasattr(front, "groups") else tensors, front, **more)


def zero_redundancy() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its neighbours use torch.jit
        from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer


# The number of ranks and how they wrap a model, by name.
WRAPPINGS: dict[str, tuple[int, Wrap]] = {
    "FSDP2": (3, fsdp2),
    "FSDP2, resharded after forward": (2, lambda model: fsdp2(model, reshard_after_forward=True)),
    "FSDP2, not resharded": (2, lambda model: fsdp2(model, reshard_after_forward=False)),
    "FSDP2, mixed precision": (2, low_precision),
    "FSDP2, offloaded": (2, offloaded),
    "HSDP": (4, lambda model: fsdp2(model, mesh_of(2, 2))),
    "TP": (2, tensor_parallel),
    "TP and FSDP2": (4, both),
    "DDP": (2, replicated),
    "FSDP1": (2, fsdp1),
    "FSDP1, nested": (3, lambda model: fsdp1(model, nested=True)),
    "FSDP1, flat parameters": (3, lambda model: fsdp1(model, use_orig_params=False)),
    "FSDP1, mixed precision": (2, fsdp1_low_precision),
    "FSDP1, SHARD_GRAD_OP": (4, lambda model: fsdp1(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)),
    "FSDP1, HYBRID_SHARD": (4, fsdp1_hybrid),
    "FSDP1, NO_SHARD": (2, lambda model: fsdp1(model, sharding_strategy=ShardingStrategy.NO_SHARD)),
}
