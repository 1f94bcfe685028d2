"""All that came of the demo, by row of its table, and as JSON. The table, the words and the report are made of this."""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from layerwise.cli.demo.outcome import Noise, Outcome
from layerwise.cli.demo.settings import Act, Case, Run, cases, runs, seeds_of
from layerwise.cli.info import NOT_INSTALLED, version_of

PACKAGES = ("layerwise", "numpy", "torch", "scikit-learn", "matplotlib")


@dataclass(frozen=True)
class Row:
    """A case with what its seeds brought; those that are missing were not finished."""

    case: Case
    outcomes: tuple[Outcome, ...]
    seeds: int

    @cached_property
    def figures(self) -> list[float]:
        """Of the seeds that did not diverge: accuracy on the test images in percent, or loss on the test text."""
        metric = self.case.task.metric
        found = [o.accuracy if metric == "accuracy" else o.loss for o in self.outcomes]
        return [x for x in found if x is not None]

    @property
    def done(self) -> bool:
        return len(self.outcomes) == self.seeds

    @property
    def diverged(self) -> int:
        return sum(o.diverged for o in self.outcomes)

    @property
    def mean(self) -> float | None:
        """None if a seed diverged: a mean of the others would say too much."""
        return statistics.fmean(self.figures) if self.figures and not self.diverged else None

    @property
    def spread(self) -> float:
        """The standard deviation over seeds."""
        return statistics.pstdev(self.figures) if self.figures else 0.0

    @property
    def bytes_per_parameter(self) -> float | None:
        return self.outcomes[0].bytes_per_parameter if self.outcomes else None


@dataclass
class Result:
    acts: tuple[Act, ...]
    seeds: range
    threads: int
    quick: bool = False
    partial: bool = False
    seconds: float = 0.0
    outcomes: dict[Run, Outcome] = field(default_factory=dict)

    def runs(self) -> list[Run]:
        """Return the runs to do: act by act, and of each act the longest first, so that none runs alone at its end.

        A run that two acts have in common is done once.
        """
        return list(dict.fromkeys(run for act in self.acts for run in self._runs_of(act)))

    def _runs_of(self, act: Act) -> list[Run]:
        return sorted(runs(act, self.seeds), key=lambda run: -run.cost)

    def act_of(self, run: Run) -> Act:
        """Return the first act that has this run."""
        return next(act for act in self.acts if run.case in cases(act))

    def rows(self, act: Act) -> list[Row]:
        return [self.row(case) for case in cases(act)]

    def row(self, case: Case) -> Row:
        found = sorted(self.outcomes.items(), key=lambda item: item[0].seed)
        return Row(case, tuple(o for run, o in found if run.case == case), len(seeds_of(case, self.seeds)))

    def get(self, act: Act, name: str, batch: int, retuned: bool = False) -> Row | None:
        """Return the row of a contender, if all its seeds are there."""
        wanted = (name, batch, retuned)
        found = (row for row in self.rows(act) if (row.case.contender.name, row.case.batch, row.case.retuned) == wanted)
        return next((row for row in found if row.done), None)

    @property
    def noise(self) -> tuple[Run, Noise] | None:
        return next(((run, o.noise) for run, o in self.outcomes.items() if o.noise is not None), None)


def change(result: Result, row: Row) -> float | None:
    """Return the difference from the same contender at the small batch."""
    case = row.case
    before = result.row(Case(case.task, case.contender, case.task.small))
    if case.batch == case.task.small or before.mean is None or row.mean is None:
        return None
    return row.mean - before.mean


def shown(row: Row, plus_minus: str = "±") -> str:
    """Return the figure of a row with its spread, as the table has it."""
    if row.diverged:
        return "diverged" if row.diverged == len(row.outcomes) else f"{row.diverged} of {len(row.outcomes)} diverged"
    if row.mean is None:
        return "–"
    digits = 1 if row.case.task.metric == "accuracy" else 3
    unit = " %" if row.case.task.metric == "accuracy" else ""
    spread = f" {plus_minus} {row.spread:.{digits}f}" if len(row.figures) > 1 else ""
    return f"{row.mean:.{digits}f}{spread}{unit}"


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version_of(name) or NOT_INSTALLED for name in PACKAGES}}


def as_json(result: Result) -> dict[str, Any]:
    """Return every setting, version and figure. JSON has no infinities, so a loss that is not finite is null."""
    return {
        "partial": result.partial,
        "quick": result.quick,
        "seeds": list(result.seeds),
        "threads": result.threads,
        "seconds": result.seconds,
        "machine": platform.platform(),
        "versions": versions(),
        "acts": [_act(result, act) for act in result.acts],
    }


def _act(result: Result, act: Act) -> dict[str, Any]:
    return {
        "number": act.number,
        "title": act.title,
        "task": asdict(act.task),
        "metric": act.task.metric,
        "cases": [_case(row) for row in result.rows(act)],
    }


def _case(row: Row) -> dict[str, Any]:
    case, recipe = row.case, row.case.recipe
    return {
        "optimizer": case.contender.optimizer,
        "name": case.name,
        "batch": case.batch,
        "steps": case.steps,
        "warmup_steps": recipe.warmup_steps,
        "lr": case.lr,
        "lr_is": case.lr_is,
        "options": case.options,
        "retuned": case.retuned,
        "mean": row.mean,
        "spread": row.spread,
        "runs": [_finite(asdict(o)) for o in row.outcomes],
    }


def _finite(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {key: _finite(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [_finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def begun(result: Result) -> list[Row]:
    """Return each case of which something is known."""
    found = dict.fromkeys(case for act in result.acts for case in cases(act))
    return [row for row in map(result.row, found) if row.outcomes]
