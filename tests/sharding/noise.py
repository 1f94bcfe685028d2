"""What ranks do that train and measure the noise of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from sharding.counting import Collectives
from sharding.models import Small
from sharding.wrappings import WRAPPINGS, gathered
from torch.nn.parallel import DistributedDataParallel

from layerwise.torch import Lamb, NoiseScale

STEPS, PASSES, BATCH = 2, 2, 4  # the second step finds averages
TENSOR_PARALLEL = {"TP": 2, "TP and FSDP2": 2}  # how many ranks work on one batch


def replicas(wrapping: str) -> int:
    return WRAPPINGS[wrapping][0] // TENSOR_PARALLEL.get(wrapping, 1)


def batch(step: int, number: int) -> torch.Tensor:
    return torch.randint(13, (BATCH, 6), generator=torch.Generator().manual_seed(100 * step + number))


def backward(model: Any, batches: Sequence[torch.Tensor], synchronized: bool) -> None:
    """The passes of one step; only in the last of them are gradients sent, if those before are not `synchronized`."""
    ddp = isinstance(model, DistributedDataParallel)
    for i, x in enumerate(batches):
        silent = not synchronized and i + 1 < len(batches)
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(not silent)
        with model.no_sync() if silent and ddp else nullcontext():
            (model(x) / len(batches)).backward()


def estimates(wrapping: str, synchronized: bool, measured: bool) -> Any:
    """What each step says of the noise, and the weights in the end."""
    rank = dist.get_rank() // TENSOR_PARALLEL.get(wrapping, 1)
    model, found = WRAPPINGS[wrapping][1](Small(torch.float64)), []
    noise = NoiseScale(model, replicas=replicas(wrapping)) if measured else None
    opt = Lamb(model.parameters(), lr=0.01)
    for t in range(STEPS):
        opt.zero_grad()
        backward(model, [batch(t, PASSES * rank + i) for i in range(PASSES)], synchronized)
        if noise is not None:
            found.append(tuple(noise.update(BATCH, 1 / PASSES)))
        opt.step()
    return found, gathered(model, lambda p: p)


def alone(ranks: int) -> Any:
    """The same of one process, in as many passes as all ranks have together."""
    model, found = Small(torch.float64), []
    noise, opt = NoiseScale(model), Lamb(model.parameters(), lr=0.01)
    for t in range(STEPS):
        opt.zero_grad()
        backward(model, [batch(t, i) for i in range(PASSES * ranks)], True)
        found.append(tuple(noise.update(BATCH, 1 / (PASSES * ranks))))
        opt.step()
    return found


def collectives(wrapping: str) -> Any:
    """Those of an update with one pass on each rank."""
    model = WRAPPINGS[wrapping][1](Small(torch.float32))
    noise = NoiseScale(model, replicas=replicas(wrapping))
    backward(model, [batch(0, dist.get_rank())], True)
    with Collectives() as seen:
        noise.update(BATCH)
    return seen.seen


def misuse(sizes: Any, passes: Any) -> list[str]:
    """The errors of an update with these sizes after as many passes, by rank, and of a right one after it."""
    rank, errors, model = dist.get_rank(), [], Small(torch.float32)  # bare, so that passes need not match
    noise = NoiseScale(model)
    for size, n in ((sizes[rank], passes[rank]), (BATCH, 2)):
        backward(model, [batch(0, i) for i in range(n)], True)
        try:
            noise.update(size)
        except Exception as problem:
            errors.append(type(problem).__name__)
    return errors
