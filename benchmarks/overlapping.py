"""Steps of sharded tensors in buckets: one after the other, or each measured while sums of the last are on their way.

Both have the same memory: buckets of so many elements that wait alone, or of half as many, two of which wait. Loopback
answers within a fraction of a millisecond, and the processes share two cores, so that hardly anything is left to hide.
A network that is slower is emulated: a sum has arrived no sooner than so many milliseconds after it was sent. The
processes sleep meanwhile, as they would where a network card does the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import layerwise.torch
from layerwise.cli.bench.peers import LR
from layerwise.cli.bench.timing import Timing, alternately
from layerwise.torch.sharding._peers import Peers

TABLE = "overlap.csv"
DELAYS = (0.0, 0.1, 1.0, 5.0)  # milliseconds
MATRICES, SHAPE = 16, (1024, 1024)
WAITING = 1 << 21  # elements of one process's part whose new state may wait
OPTIMIZERS = ("Lamb", "Adafactor")
send = Peers.send
Row = dict[str, Any]


class Later:
    """A sum that arrives so many seconds after it was sent, or when it does."""

    def __init__(self, work: Any, seconds: float) -> None:
        self._work, self._at = work, time.perf_counter() + seconds

    def wait(self, *patience: Any) -> None:
        self._work.wait(*patience)
        time.sleep(max(0.0, self._at - time.perf_counter()))


@contextmanager
def delayed(milliseconds: float) -> Iterator[None]:
    """Emulate a network on which no sum takes less."""
    all_reduce = dist.all_reduce

    def emulated(*args: Any, **kwargs: Any) -> Any:
        return Later(all_reduce(*args, **kwargs), milliseconds / 1e3)

    with patch.object(dist, "all_reduce", emulated) if milliseconds else patch.dict({}):
        yield


def at_once(self: Peers, *given: Any) -> Callable[[], Any]:
    """Send sums, and wait for their totals."""
    totals = send(self, *given)()
    return lambda: totals


def model() -> list[Any]:
    """Named parameters with gradients, sharded over all processes."""
    torch.manual_seed(0)
    holder = nn.Module()
    for i in range(MATRICES):
        holder.register_parameter(f"t{i}", nn.Parameter(torch.randn(SHAPE)))
    fully_shard(holder)
    for p in holder.parameters():
        p.grad = torch.full_like(p, 1e-3)
    return list(holder.named_parameters())


def waiting_step(optimizer: Any) -> None:
    layerwise.torch.set_bucket_size(2 * WAITING)
    with patch.object(Peers, "send", at_once):
        optimizer.step()


def overlapping_step(optimizer: Any) -> None:
    layerwise.torch.set_bucket_size(WAITING)
    optimizer.step()


def measure(rounds: int) -> list[Row]:
    """A row for each optimizer and delay, as this process sees it."""
    steps = {}
    for name in OPTIMIZERS:
        for how, step in (("before", waiting_step), ("after", overlapping_step)):
            optimizer = getattr(layerwise.torch, name)(model(), lr=LR, weight_decay=0.01, fused=False)
            steps[name, how] = partial(step, optimizer)
    rows = []
    for delay in DELAYS:
        with delayed(delay):
            timings = alternately({f"{name} {how}": step for (name, how), step in steps.items()}, rounds, together=dist.barrier)
        for name in OPTIMIZERS:
            rows.append(row(name, delay, timings[f"{name} before"], timings[f"{name} after"]))
    return rows


def row(name: str, delay: float, before: Timing, after: Timing) -> Row:
    ratio = after.over(before)
    low, high = ratio.quartiles
    return {
        "ranks": dist.get_world_size(),
        "optimizer": name,
        "emulated_ms": delay,
        "rounds": len(before.rounds),
        "before_ms": round(1e3 * before.median, 2),
        "after_ms": round(1e3 * after.median, 2),
        "ratio": round(ratio.median, 3),
        "ratio_q1": round(low, 3),
        "ratio_q3": round(high, 3),
    }
