"""Ranks that mean to step in the backward pass, and what their gradients then are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from sharding.models import Small, named
from sharding.runs import zero_redundancy
from sharding.wrappings import fsdp1, fsdp2
from torch.nn.parallel import DistributedDataParallel

from layerwise.errors import LayerwiseError
from layerwise.torch import Lamb, step_in_backward

OPTIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "bucket views": {"gradient_as_bucket_view": True},
    "static graph": {"static_graph": True},
    "unused parameters": {"find_unused_parameters": True},
}


def batch() -> Any:
    """A batch of this rank's own."""
    return torch.randint(13, (4, 6), generator=torch.Generator().manual_seed(dist.get_rank()))


@contextmanager
def errors() -> Iterator[list[str]]:
    found: list[str] = []
    try:
        yield found
    except LayerwiseError as problem:
        found.append(f"{type(problem).__name__}: {problem}")


def moved(model: Any, before: Any) -> bool:
    return any(not torch.equal(p, before[name]) for name, p in named(model).items())


def ddp(options: str, wrapped_first: bool, every: int, alone: bool) -> tuple[list[str], bool]:
    """What is said where a model goes into DistributedDataParallel before or after the hooks, and if a weight moved."""
    model = Small(torch.float64)
    before = {name: p.detach().clone() for name, p in named(model).items()}
    opt = Lamb(model.named_parameters(), lr=0.1)
    with errors() as found:
        wrapped = DistributedDataParallel(model, **OPTIONS[options]) if wrapped_first else None
        step_in_backward(opt, every=every, alone=alone)
        wrapped = wrapped or DistributedDataParallel(model, **OPTIONS[options])
        for i in range(2 * every):
            with nullcontext() if (i + 1) % every == 0 else wrapped.no_sync():
                wrapped(batch()).backward()
        opt.step()
    return found, moved(model, before)


def sharded(wrap: str, wrapped_first: bool) -> tuple[list[str], bool]:
    """The same with what shards a model."""
    model, wrappers = Small(torch.float64), {"FSDP1": partial(fsdp1, described=False), "FSDP2": fsdp2}
    before = {name: p.detach().clone() for name, p in named(model).items()}
    with errors() as found:
        wrapped = wrappers[wrap](model) if wrapped_first else model
        opt = Lamb(wrapped.named_parameters(), lr=0.1)
        step_in_backward(opt, alone=not wrapped_first)
        if not wrapped_first:
            wrapped = wrappers[wrap](model)
        wrapped(batch()).backward()
        opt.step()
    whole = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in named(wrapped).items()}
    return found, wrap == "FSDP2" and any(not torch.equal(p, before[name]) for name, p in whole.items())


def wrapping_optimizers() -> list[str]:
    """What is said of optimizers that wrap one of ours, and of that one itself."""
    model = Small(torch.float64)
    zero = zero_redundancy()(model.parameters(), Lamb, lr=0.1)
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    local = PostLocalSGDOptimizer(Lamb(model.parameters(), lr=0.1), PeriodicModelAverager(period=2))
    said = []
    for opt in (zero, zero.optim, local, local.optim):
        with errors() as found:
            step_in_backward(opt)
        said += found
    return said


def alone() -> bool:
    """Whether ranks with models of their own end where each would by steps after the backward pass."""
    ends = []
    for in_backward in (True, False):
        model = Small(torch.float64)
        opt = Lamb(model.named_parameters(), lr=0.1)
        if in_backward:
            step_in_backward(opt, alone=True)
        for _ in range(3):
            model(batch()).backward()
            opt.step()
            opt.zero_grad()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return torch.allclose(*ends, rtol=1e-10, atol=1e-14)
