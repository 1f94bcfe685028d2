"""Steps of sharded tensors in buckets: one after the other, or measured while sums of another are on their way.

Both have the same memory: buckets of so many elements that wait alone, or of half as many, two of which wait. The
smaller ones are also shown one after the other. Besides the time of a step there is the time that it waits for sums,
which is all that can be saved.

Loopback answers within a fraction of a millisecond, and the processes share two cores. A slower network is emulated, by
one process that is the first of a group of PyTorch's `fake` backend, in which all others hold the same: a sum has
arrived so many milliseconds after it was sent, and the process sleeps meanwhile, as where a network card does the work.
"""

from __future__ import annotations

import statistics
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
from layerwise.cli.bench.timing import Timing, alternately
from layerwise.torch.sharding._peers import Peers

DELAYS = (0.1, 1.0, 5.0)  # milliseconds
EMULATED = 64  # processes
MATRICES, SHAPE = 16, (1024, 1024)
WAITING = 1 << 22  # elements of one process's part whose new state may wait
OPTIMIZERS = ("Lamb", "Adafactor")
HOW = {"before": (2 * WAITING, False), "halves": (WAITING, False), "after": (WAITING, True)}
send, all_reduce = Peers.send, dist.all_reduce
Row = dict[str, Any]


class Network:
    """Sums that arrive no sooner than so many seconds after they were sent, and how long was waited for them."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.waited = seconds, 0.0

    def all_reduce(self, sums: Any, **kwargs: Any) -> Any:
        return Sum(self, all_reduce(sums, **kwargs), sums)


class Sum:
    """A sum on its way."""

    def __init__(self, network: Network, work: Any, sums: Any) -> None:
        self._network, self._work, self._sums = network, work, sums
        self._at = time.perf_counter() + network.seconds

    def wait(self, *patience: Any) -> None:
        start = time.perf_counter()
        self._work.wait(*patience)
        if dist.get_backend() == "fake":
            time.sleep(max(0.0, self._at - time.perf_counter()))
            self._sums.mul_(dist.get_world_size())
        self._network.waited += time.perf_counter() - start


class Stepping:
    """Steps of one optimizer, and how long each waited."""

    def __init__(self, optimizer: Any, network: Network, elements: int, overlaps: bool) -> None:
        self._optimizer, self._network, self._elements, self._overlaps = optimizer, network, elements, overlaps
        self.waited: list[float] = []

    def step(self) -> None:
        layerwise.torch.set_bucket_size(self._elements)
        before = self._network.waited
        with nullcontext() if self._overlaps else patch.object(Peers, "send", _at_once):
            self._optimizer.step()
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


def measure(rounds: int, delays: Sequence[float] = (0.0,)) -> list[Row]:
    """A row for each optimizer and delay, as this process sees it."""
    rows = []
    for name in OPTIMIZERS:
        optimizer = getattr(layerwise.torch, name)(model(), lr=LR, weight_decay=0.01, fused=False)
        for delay in delays:
            network = Network(delay / 1e3)
            steppings = {how: Stepping(optimizer, network, *given) for how, given in HOW.items()}
            with patch.object(dist, "all_reduce", network.all_reduce):
                timings = alternately({how: one.step for how, one in steppings.items()}, rounds, together=dist.barrier)
            rows.append(row(name, delay, timings, {how: one.waited[-rounds:] for how, one in steppings.items()}))
    return rows


def row(name: str, delay: float, timings: dict[str, Timing], waited: dict[str, list[float]]) -> Row:
    ratio = timings["after"].over(timings["before"])
    low, high = ratio.quartiles
    found: Row = {"ranks": dist.get_world_size(), "optimizer": name, "emulated_ms": delay}
    found["rounds"] = len(ratio.rounds)
    found |= {f"{how}_ms": round(1e3 * one.median, 2) for how, one in timings.items()}
    found |= {f"{how}_waits_ms": round(1e3 * statistics.median(one), 3) for how, one in waited.items()}
    return found | {"ratio": round(ratio.median, 3), "q1": round(low, 3), "q3": round(high, 3)}
