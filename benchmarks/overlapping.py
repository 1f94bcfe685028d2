"""Steps of sharded tensors in buckets: one after the other, or measured while sums of another are on their way.

Both have the same memory: buckets of so many elements that wait alone, or of half as many, two of which wait. The
smaller ones are also shown one after the other. Besides the time of a step there is the time that it waits for sums,
which is all that can be saved.

Loopback answers within a fraction of a millisecond, and the processes share two cores. A slower network is emulated, by
one process that is the first of a group of PyTorch's `fake` backend, in which all others hold the same. Its clock is
the processor's time plus the time waited for sums, each of which has arrived so many milliseconds after it was sent, as
where a network card does the work. So whatever else the machine does counts little there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import layerwise.torch
from layerwise.cli.bench.peers import LR
from layerwise.cli.bench.timing import Timing
from layerwise.torch.sharding._peers import Peers
from rows import alternately

DELAYS = (0.1, 1.0, 5.0)  # milliseconds
EMULATED = 64  # processes
MATRICES, SHAPE = 8, (1024, 1024)
WAITING = 1 << 21  # elements of one process's part whose new state may wait
OPTIMIZERS = ("Lamb", "Adafactor")
HOW = {"before": (2 * WAITING, False), "halves": (WAITING, False), "after": (WAITING, True)}
send, all_reduce = Peers.send, dist.all_reduce
Row = dict[str, Any]


class Network:
    """Sums that arrive so many seconds after they were sent, or when they do, and how long was waited for them."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self.waited = seconds, 0.0

    def now(self) -> float:
        return time.perf_counter() if self.seconds is None else time.process_time() + self.waited

    def all_reduce(self, sums: Any, **kwargs: Any) -> Any:
        return Sum(self, all_reduce(sums, **kwargs), sums)


class Sum:
    """A sum on its way."""

    def __init__(self, network: Network, work: Any, sums: Any) -> None:
        self._network, self._work, self._sums = network, work, sums
        self._sent = network.now()

    def wait(self) -> None:
        start, seconds = self._network.now(), self._network.seconds
        self._work.wait()
        if seconds is None:
            self._network.waited += self._network.now() - start
        else:
            self._network.waited += max(0.0, self._sent + seconds - start)
            self._sums.mul_(dist.get_world_size())


class Stepping:
    """Steps of one optimizer, and how long each waited."""

    def __init__(self, optimizer: Any, network: Network, elements: int, overlaps: bool) -> None:
        self._optimizer, self._network, self._elements, self._overlaps = optimizer, network, elements, overlaps
        self.waited: list[float] = []
        self.seconds: list[float] = []

    def step(self) -> None:
        layerwise.torch.set_bucket_size(self._elements)
        before, start = self._network.waited, self._network.now()
        with nullcontext() if self._overlaps else patch.object(Peers, "send", _at_once):
            self._optimizer.step()
        self.seconds.append(self._network.now() - start)
        self.waited.append(self._network.waited - before)


def _at_once(self: Peers, *given: Any) -> Callable[[], Any]:
    totals = send(self, *given)()
    return lambda: totals


def model() -> list[Any]:
    """Named parameters with gradients, sharded over all processes."""
    torch.manual_seed(0)
    holder = nn.Module()
    for i in range(MATRICES):
        holder.register_parameter(f"t{i}", nn.Parameter(torch.randn(SHAPE[0] * dist.get_world_size(), SHAPE[1])))
    fully_shard(holder)
    for p in holder.parameters():
        p.grad = torch.full_like(p, 1e-3)
    return list(holder.named_parameters())


def emulated(rounds: int) -> list[Row]:
    """The rows of a network that does not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=EMULATED)
    try:
        return measure(rounds, DELAYS)
    finally:
        dist.destroy_process_group()


def measure(rounds: int, delays: Sequence[float | None] = (None,)) -> list[Row]:
    """A row for each optimizer and delay, as this process sees it."""
    rows = []
    for name in OPTIMIZERS:
        cls = getattr(layerwise.torch, name)
        each = {how: cls(model(), lr=LR, weight_decay=0.01, fused=False) for how in HOW}
        for delay in delays:
            network = Network(delay and delay / 1e3)
            steppings = {how: Stepping(each[how], network, *given) for how, given in HOW.items()}
            with patch.object(dist, "all_reduce", network.all_reduce):
                alternately({how: one.step for how, one in steppings.items()}, rounds, together=dist.barrier)
            rows.append(row(name, delay, rounds, steppings))
    return rows


def row(name: str, delay: float | None, rounds: int, steppings: dict[str, Stepping]) -> Row:
    timings = {how: Timing(one.seconds[-rounds:]) for how, one in steppings.items()}
    ratio = timings["after"].over(timings["before"])
    low, high = ratio.quartiles
    found: Row = {"ranks": dist.get_world_size(), "optimizer": name, "emulated_ms": delay or ""}
    found["rounds"] = rounds
    found |= {f"{how}_ms": round(1e3 * one.median, 2) for how, one in timings.items()}
    found |= {f"{how}_waits_ms": round(1e3 * Timing(one.waited[-rounds:]).median, 3) for how, one in steppings.items()}
    return found | {"ratio": round(ratio.median, 3), "q1": round(low, 3), "q3": round(high, 3)}
