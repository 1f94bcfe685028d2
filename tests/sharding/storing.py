"""Parameters and state in few bytes, on ranks that hold parts of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from sharding.counting import Collectives
from sharding.layouts import mesh_of, place
from sharding.models import named, whole
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard

from layerwise.torch import Lamb, Lars, full_precision_state_dict, load_full_precision_state_dict
from sharding import checkpoints

# Rows and columns that no number of ranks divides, one that all divide in groups, and small ones.
SHAPES = {"odd": (67, 70), "even": (16, 512), "stack": (5, 30, 33), "vector": (4352,), "small": (7, 5)}
BLOCKS = {"stack": "each"}
SPLIT = {"master_weights": "split24", "state_dtype": "int8", "rounding": "stochastic", "seed": 3}
FORMATS: dict[str, dict[str, Any]] = {
    "split24 and int8": SPLIT,
    "split": {"master_weights": "split", "state_dtype": "int8"},
    "stochastic and bfloat16": {"rounding": "stochastic", "state_dtype": "bfloat16"},
}


class Model(nn.Module):
    """Parameters of these shapes, in bfloat16."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        for name, shape in SHAPES.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=draw).to(torch.bfloat16)))


def strided(model: nn.Module) -> None:
    mesh = mesh_of(2, dist.get_world_size() // 2)
    for name, p in list(model.named_parameters()):
        place(model, name, mesh["inner"], [Shard(0) if p.shape[0] % 4 == 0 else Replicate()])
    fully_shard(model, mesh=mesh["outer"])


def by(d: int, model: nn.Module) -> None:
    """Along a dimension, evenly or not."""
    mesh = mesh_of(dist.get_world_size())
    for name, p in list(model.named_parameters()):
        place(model, name, mesh, [Shard(min(d, p.ndim - 1))])


LAYOUTS: dict[str, Any] = {
    "whole": lambda model: None,
    "fsdp": lambda model: fully_shard(model, mesh=mesh_of(dist.get_world_size())),
    "hybrid": lambda model: fully_shard(model, mesh=mesh_of(2, dist.get_world_size() // 2)),
    "rows": lambda model: by(0, model),
    "columns": lambda model: by(1, model),
    "strided": strided,
}


def made(layout: str, options: Mapping[str, Any], seed: int = 0, front: Any = Lamb) -> tuple[nn.Module, Any]:
    model = Model(seed)
    LAYOUTS[layout](model)
    more = {} if front is Lamb else {"momentum": 0.9}
    return model, front(model.named_parameters(), lr=0.01, blocks=BLOCKS, **more, **options)


def walk(layout: str, model: nn.Module, opt: Any, steps: Any) -> None:
    for t in steps:
        grads = Model(100 + t)
        LAYOUTS[layout](grads)
        theirs = named(grads)
        for name, p in named(model).items():
            p.grad = theirs[name].detach().clone()
        opt.step()


def gathered(model: nn.Module, opt: Any) -> dict[str, Any]:
    """Return weights and state, whole, as they are saved: collectives know no integers of 16 bits."""
    found = {name: whole(p) for name, p in named(model).items()}
    saved = opt.state_dict()
    for key, one in saved["state"].items():
        for field, x in one.items():
            found[f"{key} {field}"] = whole(x)
    full = full_precision_state_dict(model, opt)
    return {**found, **{f"{name} in full": whole(x) for name, x in full.items()}}


def stepped(layout: str, options: Mapping[str, Any], steps: int, front: Any = Lamb) -> Any:
    """What a rank has in the end, how it is stored, what it was warned of, and what its replicas have."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, opt = made(layout, options, front=front)
        walk(layout, model, opt, range(steps))
    here = [bytes(_local(x).reshape(-1).contiguous().view(torch.uint8).numpy()) for x in _tensors(opt)]
    return gathered(model, opt), opt.storage(), sorted({str(one.message) for one in caught}), hash(tuple(here))


def _tensors(opt: Any) -> list[Any]:
    return [x for p in opt.parameters() for x in (p.detach(), *(v for k, v in opt.state[p].items() if k != "step"))]


def _local(x: Any) -> Any:
    return x.to_local() if isinstance(x, DTensor) else x


def of_elements(layout: str, options: Mapping[str, Any], steps: int) -> Any:
    model = Model(0)
    LAYOUTS[layout](model)
    opt = Lars(model.named_parameters(), lr=0.01, momentum=0.9, adapt=False, blocks=BLOCKS, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        walk(layout, model, opt, range(steps))
    return gathered(model, opt), opt.storage()


def saved(layout: str, options: Mapping[str, Any], path: str, how: str) -> Any:
    """Steps before a checkpoint, and those after it."""
    model, opt = made(layout, options)
    walk(layout, model, opt, range(2))
    checkpoints.save(how, path, model, opt)
    before = gathered(model, opt)
    walk(layout, model, opt, range(2, 4))
    return before, gathered(model, opt)


def resumed(layout: str, options: Mapping[str, Any], path: str, how: str) -> Any:
    """What was loaded by others than those that saved, and the steps after it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, opt = made(layout, options, seed=9)
        checkpoints.load(how, path, model, opt)
        before = gathered(model, opt)
        walk(layout, model, opt, range(2, 4))
    return before, gathered(model, opt)


def into_numbers(layout: str, path: str) -> None:
    """Load codes by torch.distributed.checkpoint into an optimizer that has numbers in their place."""
    model, opt = made(layout, {**SPLIT, "state_dtype": "float32"}, seed=9)
    checkpoints.load("dcp", path, model, opt)


def full_and_back(layout: str) -> Any:
    """Weights in full, read and set; the second from whole tensors."""
    options = {"master_weights": "split"}
    model, opt = made(layout, options)
    walk(layout, model, opt, range(2))
    full = full_precision_state_dict(model, opt)
    found = []
    for given in (full, {key: torch.tensor(whole(x)) for key, x in full.items()}):
        other, new = made(layout, options, seed=9)
        load_full_precision_state_dict(other, new, given)
        found.append({key: whole(x) for key, x in full_precision_state_dict(other, new).items()})
    alike = all(x.placements == p.placements for p, x in zip(model.parameters(), full.values(), strict=True))
    return {key: whole(x) for key, x in full.items()}, found, alike


def collectives(layout: str) -> int:
    """How many a step takes that is like the one before."""
    model, opt = made(layout, SPLIT)
    walk(layout, model, opt, range(2))
    with Collectives() as seen:
        opt.step()
    return len(seen.seen)


def disagreeing(layout: str, option: str, ours: Any, theirs: Any) -> Any:
    model, opt = made(layout, {**SPLIT, option: ours if dist.get_rank() == 0 else theirs})
    walk(layout, model, opt, range(1))
