"""Find the learning rates of `layerwise demo`: for each optimizer the best of five, a factor of 2 apart.

Best is the lowest loss on data that the demo does not show, as the mean of two seeds that it does not use, and the grid
moves until the best is in its middle. At the small batch for everyone, whose rates the demo then scales by the
square-root rule; at the large batch again, to know what a rate tuned there reaches. Start from settings.py's rates.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context

from layerwise.cli.demo.outcome import Outcome
from layerwise.cli.demo.settings import ACTS, Act, Case, Contender, Run, Task
from rows import RESULTS, provenance

SEEDS = (100, 101)
BESIDE = 2  # points on either side of the best
FOUND = RESULTS / "tune_demo.csv"


def outcome(run: Run) -> Outcome:
    """In a worker, with one thread."""
    import torch

    import layerwise
    from layerwise.cli.demo.data import load
    from layerwise.cli.demo.train import train

    torch.set_num_threads(1)
    layerwise.set_num_threads(1)
    data = load(run.case.task)
    return train(run, data=data._replace(test=data.tuning))


def case(act: Act, contender: Contender, batch: int, lr: float) -> Case:
    """The contender at this batch, with a rate that is not scaled from anywhere."""
    if batch == act.task.small:
        return Case(act.task, replace(contender, lr=lr), batch)
    return Case(act.task, replace(contender, retuned=lr), batch, retuned=True)


class Grid:
    """What is known of a contender at a batch, by how many factors of 2 its rate is from the first."""

    def __init__(self, act: Act, contender: Contender, batch: int, middle: float) -> None:
        self.act, self.contender, self.batch, self.middle = act, contender, batch, middle
        self.at: dict[int, list[Outcome]] = {}

    def lr(self, k: int) -> float:
        return self.middle * 2.0**k

    def loss(self, k: int) -> float:
        return statistics.fmean(math.inf if o.loss is None else o.loss for o in self.at[k])

    @property
    def best(self) -> int:
        return min(self.at, key=self.loss, default=0)

    def missing(self) -> list[int]:
        return [k for k in range(self.best - BESIDE, self.best + BESIDE + 1) if k not in self.at]

    def rows(self) -> Iterator[dict[str, object]]:
        for k in sorted(self.at):
            right = [o.accuracy for o in self.at[k] if o.accuracy is not None]
            yield {
                "act": self.act.number,
                "optimizer": self.contender.name,
                "batch": self.batch,
                "lr": f"{self.lr(k):.4g}",
                "loss": f"{self.loss(k):.4f}",
                "accuracy": f"{statistics.fmean(right):.2f}" if len(right) == len(SEEDS) else "",
                "best": "best" if k == self.best else "",
            }


def grids(acts: list[Act]) -> Iterator[Grid]:
    """What several acts have in common belongs to the first of them."""
    places: dict[tuple[Task, Contender, int], Act] = {}
    for act in acts:
        for contender, batch in product(act.contenders, act.batches):
            places.setdefault((act.task, contender, batch), act)
    for (task, contender, batch), act in places.items():
        scaled = Case(task, contender, batch).lr
        yield Grid(act, contender, batch, scaled if batch == task.small else contender.retuned or scaled)


def tune(grid: Grid, workers: ProcessPoolExecutor) -> None:
    while missing := grid.missing():
        cases = [case(grid.act, grid.contender, grid.batch, grid.lr(k)) for k in missing]
        found = list(workers.map(outcome, [Run(c, seed) for c in cases for seed in SEEDS]))
        for i, k in enumerate(missing):
            grid.at[k] = found[i * len(SEEDS) : (i + 1) * len(SEEDS)]
    for row in grid.rows():
        print(*row.values(), sep="\t", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--act", type=int, action="append", choices=[act.number for act in ACTS])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-write", action="store_true", help="only print")
    arguments = parser.parse_args()
    wanted = arguments.act or [act.number for act in ACTS]
    table = [grid for grid in grids(list(ACTS)) if grid.act.number in wanted]
    with ProcessPoolExecutor(arguments.workers, get_context("spawn")) as workers:
        for grid in table:
            tune(grid, workers)
    if not arguments.no_write:
        write([row for grid in table for row in grid.rows()], wanted)


def write(rows: list[dict[str, object]], acts: list[int]) -> None:
    """The acts that were tuned replace what was known of them."""
    where = provenance()
    rows = [{**row, **where} for row in rows]
    if FOUND.exists():
        with FOUND.open(newline="", encoding="utf-8") as file:
            rows += [row for row in csv.DictReader(file) if int(row["act"]) not in acts]
    rows.sort(key=lambda row: int(str(row["act"])))
    with FOUND.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
