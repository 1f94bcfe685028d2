"""How parameters can lie on ranks. Each layout takes models alike and shards all of them in the same way."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

Models = Sequence[nn.Module]
Layout = Callable[[Models], None]


@cache
def mesh_of(*shape: int, names: tuple[str, ...] = ("outer", "inner")) -> DeviceMesh:
    """The mesh of this process group; making one makes process groups of its own."""
    return init_device_mesh("cpu", shape, mesh_dim_names=names[: len(shape)])


def bare(model: nn.Module) -> set[nn.Parameter]:
    """What FSDP2 does not take, and leaves as it is: parameters without dimensions."""
    return {p for p in model.parameters() if not p.ndim}


def fsdp(models: Models, mesh: DeviceMesh | None = None, **options: Any) -> None:
    mesh = mesh_of(dist.get_world_size()) if mesh is None else mesh
    for model in models:
        fully_shard(model, mesh=mesh, ignored_params=bare(model), **options)


def nested(models: Models) -> None:
    mesh = mesh_of(dist.get_world_size())
    for model in models:
        for part in ("first", "second"):
            fully_shard(model.get_submodule(part), mesh=mesh)
    fsdp(models, mesh)


def by_columns(models: Models) -> None:
    """Along dimension 1, where FSDP2 can: it does not cut unevenly there."""
    world = dist.get_world_size()

    def placement(p: Tensor) -> Shard:
        return Shard(1 if p.ndim > 1 and p.shape[1] % world == 0 else 0)

    fsdp(models, shard_placement_fn=placement)


def hybrid(models: Models) -> None:
    """Replicated on the outer dimension, sharded on the inner one."""
    fsdp(models, mesh_of(2, dist.get_world_size() // 2))


def hybrid_in_part(models: Models) -> None:
    """Beside parameters that are cut and replicated some that are cut on the inner dimension's mesh alone."""
    mesh = mesh_of(2, dist.get_world_size() // 2)
    inner = mesh["inner"]
    for model in models:
        for i, (name, p) in enumerate(list(model.named_parameters())):
            if i % 3 == 2:
                place(model, name, inner, [_along(0, p)])
            else:
                place(model, name, mesh, [Replicate(), _along(0, p)])


def place(model: nn.Module, name: str, mesh: DeviceMesh, placements: Sequence[Placement]) -> None:
    """Put one parameter on a mesh. All ranks have the same numbers, so none need be sent."""
    owner, _, key = name.rpartition(".")
    p = model.get_parameter(name)
    placed = distribute_tensor(p.detach(), mesh, placements, src_data_rank=None)
    model.get_submodule(owner).register_parameter(key, nn.Parameter(placed))


def tensor_parallel(models: Models) -> None:
    """Dimensions in turns, and now and then replicated."""
    mesh = mesh_of(dist.get_world_size())
    for model in models:
        for i, (name, p) in enumerate(list(model.named_parameters())):
            place(model, name, mesh, [Shard(i % p.ndim) if p.ndim and i % 4 else Replicate()])


def two_dimensional(models: Models) -> None:
    """Cut by both dimensions of a mesh, also twice along the same one."""
    mesh, pairs = mesh_of(2, dist.get_world_size() // 2), [(0, 0), (0, 1), (1, 0), (None, 0), (1, None)]
    for model in models:
        for i, (name, p) in enumerate(list(model.named_parameters())):
            place(model, name, mesh, [_along(d, p) for d in pairs[i % len(pairs)]])


def _along(d: int | None, p: Tensor) -> Placement:
    return Replicate() if d is None or not p.ndim else Shard(d % p.ndim)


def tensor_parallel_in_fsdp(models: Models, d: int = 0) -> None:
    """FSDP2 over what is already tensor parallel; along the same dimension that is a strided shard."""
    mesh = mesh_of(2, dist.get_world_size() // 2)
    inner = mesh["inner"]
    for model in models:
        for name, p in list(model.named_parameters()):
            if p.ndim > 1 and p.shape[d] % 4 == 0:
                place(model, name, inner, [Shard(d)])
            elif p.ndim:
                place(model, name, inner, [Replicate()])
    fsdp(models, mesh["outer"])


def several_meshes(models: Models) -> None:
    """Some on a mesh of two dimensions, some on each of them, some on one of their own, some not at all."""
    both, line = mesh_of(2, dist.get_world_size() // 2), mesh_of(dist.get_world_size(), names=("all",))
    meshes = both["outer"], both["inner"], line, both, None
    for model in models:
        for i, (name, p) in enumerate(list(model.named_parameters())):
            mesh = meshes[i % 5]
            if mesh is not None:
                place(model, name, mesh, [_along(0, p)] * mesh.ndim)


def part_of_the_model(models: Models) -> None:
    """Sharded beside plain tensors."""
    mesh = mesh_of(dist.get_world_size())
    for model in models:
        fully_shard(model.get_submodule("first"), mesh=mesh)
        fully_shard(model.get_submodule("third"), mesh=mesh)


def plain(models: Models) -> None:
    """Whole on every rank."""


def drawn(seed: int, models: Models) -> None:
    """Each parameter on a mesh of its own, with placements of its own."""
    draw, world = random.Random(seed), dist.get_world_size()
    both, line = mesh_of(2, world // 2), mesh_of(world, names=("all",))
    choices = (both, both, both["outer"], both["inner"], line, None)
    for name, p in list(models[0].named_parameters()):
        mesh, dims = draw.choice(choices), [None, *range(p.ndim)]
        if mesh is not None:
            placements = [_along(draw.choice(dims), p) for _ in range(mesh.ndim)]
            for model in models:
                place(model, name, mesh, placements)


# The number of ranks and the layout, by name.
LAYOUTS: dict[str, tuple[int, Layout]] = {
    "plain": (2, plain),
    **{f"fsdp on {n}": (n, fsdp) for n in (1, 2, 3, 4)},
    "nested": (3, nested),
    "by columns": (2, by_columns),
    "by columns of 4": (4, by_columns),
    "hybrid": (4, hybrid),
    "hybrid in part": (4, hybrid_in_part),
    "tensor parallel on 2": (2, tensor_parallel),
    "tensor parallel on 4": (4, tensor_parallel),
    "two-dimensional": (4, two_dimensional),
    "strided": (4, tensor_parallel_in_fsdp),
    "TP × FSDP": (4, partial(tensor_parallel_in_fsdp, d=1)),
    "several meshes": (4, several_meshes),
    "part of the model": (3, part_of_the_model),
}
