"""One training run, step by step, so that whoever watches can show it or stop it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from layerwise.cli.demo import network
from layerwise.cli.demo.data import Split
from layerwise.cli.demo.settings import Contender, Plan, Schedule
from layerwise.numpy import Adafactor, Lamb, Lars

Optimizer = Lamb | Lars | Adafactor


@dataclass(frozen=True)
class Trained:
    """What a run leaves behind."""

    weights: network.Weights
    loss: float  # of the last batch; not finite if the run diverged
    state_bytes: int
    seconds: float

    @property
    def diverged(self) -> bool:
        return not math.isfinite(self.loss)


@dataclass(frozen=True)
class Progress:
    step: int
    loss: float
    lr: float


def schedule(peak: float, steps: int, warmup: int) -> Schedule:
    """Linear from 0 up to `peak` in `warmup` steps, then linear down to 0; the callable counts steps from 0."""

    def lr(step: int) -> float:
        t = step + 1
        return peak * min(t / warmup, (steps - t + 1) / (steps - warmup + 1))

    return lr


def train(
    contender: Contender, plan: Plan, batch: int, peak: float, data: Split, seed: int
) -> Iterator[Progress | Trained]:
    """Yield the progress of every step, and at the end what came of it."""
    rng = np.random.default_rng(seed)
    weights = network.new_weights(rng)
    steps = plan.steps(batch)
    lr = schedule(peak, steps, plan.warmup)
    opt = contender.make(lr)
    loss, seconds = math.nan, 0.0
    for step, rows in enumerate(_batches(rng, len(data.y), batch, steps)):
        start = perf_counter()
        with np.errstate(all="ignore"):  # a run may diverge, and is then reported as such
            loss, gradients = network.loss_and_gradients(weights, data.x[rows], data.y[rows])
        opt.step_all(weights, gradients)
        seconds += perf_counter() - start
        yield Progress(step + 1, loss, lr(step))
        if not math.isfinite(loss):
            break
    yield Trained(weights, loss, state_bytes(opt, weights), seconds)


def _batches(rng: np.random.Generator, n: int, batch: int, steps: int) -> Iterator[network.Array]:
    """`steps` batches of row numbers: every epoch a new order, cut into whole batches."""
    for step in range(steps):
        position = step % (n // batch)
        if position == 0:
            order = rng.permutation(n)
        yield order[position * batch : (position + 1) * batch]


def state_bytes(opt: Optimizer, weights: network.Weights) -> int:
    """What the optimizer keeps of the tensors; step counts and shapes are not of their size."""
    state = opt.state_dict()
    bookkeeping = {"step", "shape"}
    return sum(
        array.nbytes
        for key, array in state.items()
        if key.rpartition("/")[0] in weights and key.rpartition("/")[2] not in bookkeeping
    )


def last(run: Iterator[Progress | Trained], watch: Callable[[Progress], None] | None = None) -> Trained:
    """Carry a run to its end."""
    for seen in run:
        if isinstance(seen, Trained):
            return seen
        if watch is not None:
            watch(seen)
    raise AssertionError("a run ends with what came of it")
