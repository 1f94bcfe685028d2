"""Many steps, checkpoints and few bytes with `reproducible=True`; and whether ranks find that only some have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from sharding.models import everything
from torch import nn

from sharding import runs

MANY = 100  # steps
EXACTLY: dict[str, Any] = {"reproducible": True}


def many(front: Any, layout: str | None, dtype: torch.dtype, options: Mapping[str, Any]) -> Any:
    """What a rank has after many steps, whose gradients come again and again."""
    params, grads = runs.prepared(layout, dtype)
    opt = runs.made(front, params, options)
    for i in range(MANY):
        runs.give(params, grads[i % len(grads)])
        opt.step()
    return everything(opt, params)


def with_groups(front: Any, options: Mapping[str, Any]) -> Any:
    """One tensor of a model on each rank, which clip by the norm of all."""
    model = runs.Irregular(0, torch.float32)
    params = dict(list(runs.named(model).items())[dist.get_rank() :: dist.get_world_size()])
    grads = dict(runs.named(runs.Irregular(1, torch.float32)))
    opt = front(list(params.items()), lr=0.1, max_grad_norm=0.5, model_group=dist.group.WORLD, **options)
    for _ in range(2):
        runs.give(params, grads)
        opt.step()
    return everything(opt, params)["weights"]


def alone(front: Any, options: Mapping[str, Any]) -> Any:
    """The same in one process that has all tensors."""
    params = runs.named(runs.Irregular(0, torch.float32))
    grads = dict(runs.named(runs.Irregular(1, torch.float32)))
    opt = front(list(params.items()), lr=0.1, max_grad_norm=0.5, **options)
    for _ in range(2):
        runs.give(params, grads)
        opt.step()
    return everything(opt, params)["weights"]


def disagreeing(front: Any, layout: str, fused: bool | None, model_group: bool) -> None:
    """A step of which rank 0 alone wants the same bits everywhere, while others are stepped by some engine."""
    model = nn.Linear(3, 4)
    if not model_group:
        [model] = runs.sharded(layout, [runs.Irregular(0, torch.float32)])
    more: dict[str, Any] = {"model_group": dist.group.WORLD} if model_group else {}
    more |= {"reproducible": True} if dist.get_rank() == 0 else {"fused": fused}
    opt = front(model.parameters(), lr=0.1, max_grad_norm=1.0, **more)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    opt.step()
