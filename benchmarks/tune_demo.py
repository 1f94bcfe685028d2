"""Find the settings of the demo: the same budget for every optimizer, at the small and at the large batch.

36 runs each, judged by the loss on data that the demo does not show, with seeds that it does not use:

1. five learning rates a factor of 2 apart, each with four warm-ups, with one seed (20 runs);
2. around the best of them two other values of β₂ (or of momentum) and two of weight decay, each with half, the same and
   twice the learning rate (12 runs);
3. the four best of all with a second seed (4 runs). The lowest mean of both seeds wins.

settings.py holds the winners, and with them the learning rates in the middle of the next search.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple

import checkout  # noqa: F401
from demo.result import Outcome
from demo.settings import ACTS, LONGER, WITH_MOMENTUM, Act, Case, Contender, Run, Task, Tuned
from rows import RESULTS, provenance, supersede

SEEDS = (100, 101)
FOUND = RESULTS / "tune_demo.csv"
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the learning rate in the middle
BESIDE = (0.5, 1.0, 2.0)
FINALISTS = 4
EVERY = (*ACTS, LONGER)
WARMUPS = {("digits", 32): (12, 50, 100, 200), ("digits", 1024): (2, 4, 8, 15)}
WARMUPS |= {("text", 8): (12, 50, 100, 200), ("text", 128): (3, 6, 12, 24)}
MOMENTA: dict[str, tuple[Any, ...]] = {"momentum": (0.9, 0.8, 0.95), "weight_decay": (1e-4, 0.0, 1e-3)}
BETAS: dict[str, tuple[Any, ...]] = {
    "betas": ((0.9, 0.999), (0.9, 0.98), (0.9, 0.95)),
    "weight_decay": (0.01, 0.0, 0.1),
}
CAPS: dict[str, tuple[Any, ...]] = {"beta2_cap": (None, 0.98, 0.95), "weight_decay": (0.0, 0.01, 0.1)}
# What is tuned beside learning rate and warm-up: the first value in round 1, the others in round 2.
OPTIONS = {
    "SGD": MOMENTA,
    "LARS": MOMENTA,
    "AdamW": BETAS,
    "LAMB": BETAS,
    "Adafactor": CAPS,
    "Adafactor+momentum": CAPS,
    "Muon + AdamW": {"momentum": (0.95, 0.9, 0.98), "weight_decay": BETAS["weight_decay"]},
}

ALSO = {LONGER.number: (WITH_MOMENTUM,)}  # which no act shows


class Setting(NamedTuple):
    """A point of the search."""

    lr: float
    warmup: int
    options: tuple[tuple[str, Any], ...]

    def tuned(self) -> Tuned:
        return Tuned(self.lr, self.warmup, dict(self.options))


def outcome(run: Run) -> Outcome:
    """Train in a worker, with one thread."""
    import torch

    import layerwise
    from demo.data import load
    from demo.train import train

    torch.set_num_threads(1)
    layerwise.set_num_threads(1)
    data = load(run.case.task)
    return train(run, data=data._replace(test=data.tuning))


@dataclass
class Search:
    """The search for one optimizer at one batch."""

    act: Act
    contender: Contender
    batch: int
    losses: dict[Setting, dict[int, Outcome]] = field(default_factory=dict)

    @property
    def middle(self) -> float:
        at_small = self.batch == self.act.task.small
        tuned = self.contender.small if at_small else self.contender.large
        assert tuned is not None
        return tuned.lr

    @property
    def usual(self) -> dict[str, Any]:
        return {name: values[0] for name, values in OPTIONS[self.contender.name].items()}

    def run(self, setting: Setting, seed: int) -> Run:
        if self.batch == self.act.task.small:
            return Run(Case(self.act.task, replace(self.contender, small=setting.tuned()), self.batch), seed)
        return Run(Case(self.act.task, replace(self.contender, large=setting.tuned()), self.batch, retuned=True), seed)

    def loss(self, setting: Setting) -> float:
        """The mean over the seeds that were run; one that diverged is worse than any."""
        found = self.losses[setting].values()
        return statistics.fmean(math.inf if o.loss is None else o.loss for o in found)

    def first(self) -> Iterator[tuple[Setting, int]]:
        options = tuple(self.usual.items())
        for factor, warmup in product(FACTORS, WARMUPS[self.act.task.data, self.batch]):
            yield Setting(self.middle * factor, warmup, options), SEEDS[0]

    def second(self) -> Iterator[tuple[Setting, int]]:
        best = min(self.losses, key=self.loss)
        for name, values in OPTIONS[self.contender.name].items():
            for value, factor in product(values[1:], BESIDE):
                options = {**self.usual, name: value}
                yield Setting(best.lr * factor, best.warmup, tuple(options.items())), SEEDS[0]

    def third(self) -> Iterator[tuple[Setting, int]]:
        for setting in sorted(self.losses, key=self.loss)[:FINALISTS]:
            yield setting, SEEDS[1]

    @property
    def best(self) -> Setting:
        return min((s for s, by_seed in self.losses.items() if len(by_seed) == len(SEEDS)), key=self.loss)

    def rows(self) -> Iterator[dict[str, object]]:
        for setting, by_seed in self.losses.items():
            for seed, o in by_seed.items():
                yield {
                    "act": self.act.number,
                    "optimizer": self.contender.name,
                    "batch": self.batch,
                    "lr": f"{setting.lr:.4g}",
                    "warmup": setting.warmup,
                    "options": " ".join(f"{k}={v}" for k, v in setting.options).replace(", ", ","),
                    "seed": seed,
                    "loss": "inf" if o.loss is None else f"{o.loss:.4f}",
                    "accuracy": "" if o.accuracy is None else f"{o.accuracy:.2f}",
                    "best": "best" if setting == self.best else "",
                }


def searches(acts: Iterable[Act]) -> Iterator[Search]:
    """Give what several acts have in common to the first of them."""
    seen: set[tuple[Task, str, int]] = set()
    for act in acts:
        for contender, batch in product((*(c.of or c for c in act.contenders), *ALSO.get(act.number, ())), act.batches):
            if (act.task, contender.name, batch) not in seen:
                seen.add((act.task, contender.name, batch))
                yield Search(act, contender, batch)


def tune(search: Search, workers: ProcessPoolExecutor) -> None:
    for stage in (search.first, search.second, search.third):
        wanted = list(stage())
        runs = [search.run(*each) for each in wanted]
        for (setting, seed), found in zip(wanted, workers.map(outcome, runs), strict=True):
            search.losses.setdefault(setting, {})[seed] = found
    best = search.best
    print(f"{search.contender.name}, batch {search.batch}: {best}, loss {search.loss(best):.4f}", flush=True)
    if not min(FACTORS) * search.middle < best.lr < max(FACTORS) * search.middle:
        print("  the learning rate is at the edge of the grid: move its middle and search again", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--act", type=int, action="append", choices=[act.number for act in EVERY])
    parser.add_argument("--optimizer", action="append", choices=list(OPTIONS))
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-write", action="store_true", help="only print")
    given = parser.parse_args()
    wanted = [
        search
        for search in searches(EVERY)
        if search.act.number in (given.act or [act.number for act in EVERY])
        and search.contender.name in (given.optimizer or OPTIONS)
        and search.batch in (given.batch or [search.batch])
    ]
    with ProcessPoolExecutor(given.workers, get_context("spawn")) as workers:
        for search in wanted:
            tune(search, workers)
            if not given.no_write:
                where = provenance()
                supersede(FOUND, [{**row, **where} for row in search.rows()], "optimizer", "batch")


if __name__ == "__main__":
    main()
