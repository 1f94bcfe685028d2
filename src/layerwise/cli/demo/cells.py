"""The cells of the final table: which runs they are made of, and their figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field

from layerwise.cli.demo import network
from layerwise.cli.demo.data import Split
from layerwise.cli.demo.settings import CONTENDERS, Contender, Plan
from layerwise.cli.demo.train import Trained


@dataclass
class Cell:
    """One optimizer at one batch with one learning rate, over all seeds."""

    contender: Contender
    batch: int
    lr: float
    steps: int
    retuned: bool = False
    accuracies: list[float] = field(default_factory=list)  # in percent, a run that diverged having none
    seconds: list[float] = field(default_factory=list)
    diverged: int = 0
    state_bytes: int = 0

    def add(self, run: Trained, test: Split) -> None:
        self.state_bytes = run.state_bytes
        self.seconds.append(run.seconds)
        if run.diverged:
            self.diverged += 1
        else:
            self.accuracies.append(100 * network.accuracy(run.weights, test.x, test.y))

    @property
    def mean(self) -> float | None:
        """Mean accuracy, if every run came to its end."""
        return None if self.diverged or not self.accuracies else statistics.fmean(self.accuracies)

    @property
    def spread(self) -> float:
        """The seeds' standard deviation."""
        return statistics.pstdev(self.accuracies) if self.accuracies else 0.0

    @property
    def bytes_per_parameter(self) -> float:
        return self.state_bytes / network.PARAMETERS


def cells(plan: Plan) -> Iterator[Cell]:
    """For each optimizer the small batch, the large one by the rule, and the large one with a rate tuned there."""
    for who in CONTENDERS:
        for batch in (plan.small, plan.large):
            yield Cell(who, batch, plan.scaled(who.lr, batch), plan.steps(batch))
        if plan.retuned:
            yield Cell(who, plan.large, who.retuned, plan.steps(plan.large), retuned=True)
