"""What the ranks do with a model: steps with gradients given, and training."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from sharding.layouts import mesh_of
from sharding.models import BLOCKS, BUSY, Irregular, Small, everything, named
from sharding.wrappings import WRAPPINGS, fsdp1, gathered
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

import layerwise.torch
from layerwise.storage.options import is_of_layer
from sharding import layouts

STEPS = 4
Params = dict[str, Any]
ALIKE = ("exp_avg", "exp_avg_sq", "momentum_buffer", "master")  # as large as the parameter


def layout_of(name: str | int) -> tuple[int, layouts.Layout]:
    """The layout of that name, or the drawn one of that number."""
    return (4, lambda models: layouts.drawn(name, models)) if isinstance(name, int) else layouts.LAYOUTS[name]


def made(front: Any, params: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """An optimizer of these parameters, with blocks where it knows of any."""
    more = {} if front.__module__.startswith("torch.") else {"blocks": BLOCKS}
    return front(list(params.items()), **{**BUSY[front], **more, **options})


@cache
def gradients(layout: str | int | None, dtype: torch.dtype, steps: int = STEPS) -> list[Params]:
    """Gradients for each step, which lie like this, or whole.

    They are a model's numbers, so that whatever shards a model shards them too. That takes longer than the steps do, so
    a process group shares them: `give` copies them.
    """
    return [named(model) for model in sharded(layout, [Irregular(1 + i, dtype) for i in range(steps)])]


def sharded(layout: str | int | None, models: list[Irregular]) -> list[Irregular]:
    if layout is not None:
        layout_of(layout)[1](models)
    return models


def give(params: Params, grads: Params, without: Sequence[str] = ()) -> None:
    """Let each have its gradient, and those of these names none."""
    for name, p in params.items():
        p.grad = None if name in without else grads[name].detach().clone()


def in_partial_sums(params: Params) -> None:
    """Let gradients be sums that are still to be made, as some styles of tensor parallelism leave them."""
    for p in params.values():
        if isinstance(p.grad, DTensor):
            numbers, mesh = p.grad.full_tensor(), p.grad.device_mesh
            here = torch.zeros_like(numbers) if any(mesh.get_coordinate()) else numbers
            p.grad = DTensor.from_local(here, mesh, [Partial()] * mesh.ndim)


def prepared(layout: str | int | None, dtype: torch.dtype, steps: int = STEPS) -> tuple[Params, list[Params]]:
    """Parameters, and gradients for some steps, that lie like this, or whole."""
    [model] = sharded(layout, [Irregular(0, dtype)])
    return named(model), gradients(layout, dtype, steps)


def stepped(
    front: Any,
    layout: str | int | None,
    dtype: torch.dtype,
    options: Mapping[str, Any],
    without: Sequence[str] = (),
    steps: int = STEPS,
) -> Any:
    """What a rank has after some steps, in the second of which some parameters had no gradient."""
    params, grads = prepared(layout, dtype, steps)
    opt = made(front, params, options)
    for i, one in enumerate(grads):
        give(params, one, without if i == 1 else ())
        opt.step()
    return everything(opt, params)


def flagged(front: Any, layout: str) -> tuple[bool, bool]:
    """The flag that a GradScaler reads, before any step, and whether other processes hold parts."""
    return flags(made(front, prepared(layout, torch.float32, 1)[0], {}))


def flags(opt: Any) -> tuple[bool, bool]:
    assert opt._axes is None
    found = opt._step_supports_amp_scaling
    assert opt._axes is None  # it asked nobody
    return found, opt._agreement() is not None


def batches(steps: int) -> list[torch.Tensor]:
    return [torch.randint(13, (4, 6), generator=torch.Generator().manual_seed(i)) for i in range(steps)]


def trained(front: Any, wrapping: str, dtype: torch.dtype, options: Mapping[str, Any], zero: bool = False) -> Any:
    """What ranks that train have in the end, and the gradients they had on the way."""
    model = WRAPPINGS[wrapping][1](Small(dtype))
    opt, grads = optimizer_of(front, model, options, zero), []
    for batch in batches(STEPS):
        opt.zero_grad()
        model(batch).backward()
        grads.append(gathered(model, lambda p: p.grad))
        opt.step()
    return {"weights": gathered(model, lambda p: p)}, grads


def undescribed() -> None:
    """An optimizer of FSDP1's pieces, without their description."""
    layerwise.torch.Lamb(fsdp1(Small(torch.float32), described=False).named_parameters(), lr=0.1)


def optimizer_of(front: Any, model: Any, options: Mapping[str, Any], zero: bool = False) -> Any:
    """With `zero`, each rank steps some of the parameters and sends them to all."""
    params, more = list(named(model).items()), {**BUSY[front], **options}
    if zero and not front.__module__.startswith("torch."):
        more["model_group"] = torch.distributed.group.WORLD
    if zero:
        tensors = [p for _, p in params]
        return zero_redundancy()(front.groups(tensors) if hasattr(front, "groups") else tensors, front, **more)
    return front(params, **more)


def zero_redundancy() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its neighbours use torch.jit
        from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer


def redistributed_at_times(front: Any, layout: str | None, only: str = "") -> Any:
    """What a rank has after steps of which some have to redistribute gradients, those of all parameters or of one."""
    params, grads = prepared(layout, torch.float64)
    params = {only: params[only]} if only else params
    opt = made(front, params, {"blocks": None})
    for i, one in enumerate(grads):
        give(params, one)
        if i in (1, 3):
            in_partial_sums(params)
        opt.step()
    return everything(opt, params)


def by_uneven_columns(front: Any, sharded: bool = True) -> Any:
    """The columns that a rank has of a weight after some steps; with four of them, the last one has none."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 8, bias=False)).double()
    grads = [torch.randn(8, 5, dtype=torch.float64) for _ in range(STEPS)]
    if sharded:
        mesh = mesh_of(1, 4)
        layouts.place(model, "1.weight", mesh["inner"], [Shard(1)])
        layouts.fsdp([model], mesh["outer"])
    p = model[1].weight
    opt = front([("weight", p)], **{**BUSY[front], "blocks": {"weight": 4}})
    for g in grads:
        p.grad = _as(p, g)
        opt.step()
    here = p.detach().to_local() if sharded else p.detach()
    return here.reshape(8, -1 if here.numel() else 0).numpy()


def _as(p: Any, g: Tensor) -> Any:
    """A gradient that is given to a parameter as FSDP2 would, with the local part's own shape."""
    if not isinstance(p, DTensor):
        return g
    placed = distribute_tensor(g, p.device_mesh, p.placements, src_data_rank=None)
    here = placed.to_local().reshape(p.to_local().shape)
    return DTensor.from_local(here, p.device_mesh, p.placements, shape=p.shape, stride=p.stride())


def measured_empty() -> Any:
    """The norms of the blocks of a tensor without elements, of which FSDP2 shows no block."""
    mesh = mesh_of(2)
    model = nn.Module()
    model.register_parameter("empty", nn.Parameter(torch.ones(8, 0)))
    layouts.fsdp([model], mesh)
    opt = layerwise.torch.Lamb(model.named_parameters(), lr=0.1, blocks={"empty": "each"})
    model.empty.grad = model.empty.detach().clone()
    opt.step()
    return opt.stats()["empty"]["weight_norm"]


def replayed(front: Any, dtype: torch.dtype, grads: Any, options: Mapping[str, Any]) -> Any:
    """The weights of one process that has everything whole and is given these gradients."""
    model = Small(dtype)
    opt = optimizer_of(front, model, options)
    for one in grads:
        for name, p in named(model).items():
            p.grad = torch.tensor(one[name]).to(dtype)
        opt.step()
    return {"weights": gathered(model, lambda p: p)}


def layout_of_state(front: Any, layout: str) -> dict[tuple[str, str], tuple[bool, bool]]:
    """By the names of a parameter and of a part of its state: whether that lies on the same mesh, and is cut alike."""
    params, grads = prepared(layout, torch.float32)
    opt = made(front, params, {})
    give(params, grads[0])
    opt.step()
    sharded = {name: p for name, p in params.items() if isinstance(p, DTensor)}
    alike = [key for key in ALIKE if key not in front._rule.State._fields or not is_of_layer(front._rule, key)]
    return {
        (name, key): (_on_the_mesh_of(p, x), key not in alike or x.placements == p.placements)
        for name, p in sharded.items()
        for key, x in opt.state[p].items()
        if key != "step"
    }


def places_of_offloaded_state(front: Any) -> set[str]:
    """Where a step keeps the state of what lies in the host's memory, if its mesh is of another device."""
    mesh = mesh_of(1)
    params = [
        nn.Parameter(distribute_tensor(torch.ones(shape), mesh, [Shard(0)], src_data_rank=None))
        for shape in ((3,), (4, 5))
    ]
    for p in params:
        p.grad = torch.ones_like(p)
    opt = front(params, lr=0.1)
    with patch.object(params[0].device_mesh, "_device_type", "meta"):
        opt.step()
    return {x.device.type for p in params for x in opt.state[p].values()}


def _on_the_mesh_of(p: DTensor, x: Any) -> bool:
    return isinstance(x, DTensor) and x.device_mesh == p.device_mesh
