"""All that came of the demo, by run and by row of its table, and as JSON: plain data, without PyTorch."""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from demo.settings import Act, Case, Run
from layerwise.cli.info import NOT_INSTALLED, version_of

PACKAGES = ("layerwise", "numpy", "torch", "scikit-learn", "matplotlib")
Ratios = dict[str, float]  # trust ratios by layer


@dataclass
class Outcome:
    """The outcome of a run. A run that diverged has no figures, and its last loss is not finite."""

    accuracy: float | None = None  # on the test images, or of the next character of the test text, in percent
    loss: float | None = None  # on the same, in nats
    parameters: int = 0
    weight_bytes: int = 0
    state_bytes: int = 0
    seconds: float = 0.0  # of the steps, without getting ready
    losses: list[tuple[int, float]] = field(default_factory=list)  # of the batch, by step
    ratios: list[tuple[int, Ratios]] = field(default_factory=list)

    @property
    def bytes_per_parameter(self) -> float:
        """Weights and state, without gradients."""
        return (self.weight_bytes + self.state_bytes) / self.parameters

    @property
    def diverged(self) -> bool:
        return bool(self.losses) and not math.isfinite(self.losses[-1][1])


@dataclass(frozen=True)
class Row:
    """A case with what its seeds brought; those that are missing were not finished."""

    case: Case
    outcomes: tuple[Outcome, ...]
    done: bool

    @property
    def figures(self) -> list[float]:
        """Of the seeds that did not diverge: accuracy on the test images in percent, or loss on the test text."""
        found = [getattr(o, self.case.task.metric) for o in self.outcomes]
        return [x for x in found if x is not None]

    @property
    def diverged(self) -> int:
        return sum(o.diverged for o in self.outcomes)

    @property
    def mean(self) -> float | None:
        """None if a seed diverged: a mean of the others would say too much."""
        return statistics.fmean(self.figures) if self.figures and not self.diverged else None

    @property
    def bytes(self) -> float | None:
        """For each parameter."""
        return self.outcomes[0].bytes_per_parameter if self.outcomes else None

    @property
    def bytes_shown(self) -> str:
        return "" if self.bytes is None else f"{self.bytes:.2f}"

    @property
    def brief(self) -> str:
        """The mean as a headline and a mark have it."""
        if self.mean is None:
            return str(self)
        return f"{self.mean:.{1 if self.case.task.metric == 'accuracy' else 2}f}{self.case.task.unit}"

    def __str__(self) -> str:
        """The mean with its standard deviation over seeds, or what there is in its place."""
        task, n = self.case.task, len(self.outcomes)
        if self.diverged:
            return "diverged" if self.diverged == n else f"{self.diverged} of {n} diverged"
        if self.mean is None:
            return "–"
        spread = f" ± {statistics.pstdev(self.figures):.{task.digits}f}" if n > 1 else ""
        return f"{self.mean:.{task.digits}f}{spread}{task.unit}"


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
        """Return the runs to do, of all acts at once: the longest first, so that none runs alone at the end.

        A run that two acts have in common is done once.
        """
        return sorted(
            dict.fromkeys(run for act in self.acts for run in act.runs(self.seeds)), key=lambda run: -run.cost
        )

    def act_of(self, run: Run) -> Act:
        """Return the first act that has this run."""
        return next(act for act in self.acts if run.case in act.cases())

    def rows(self, act: Act, batch: int | None = None) -> list[Row]:
        """Return the rows of an act: all, or those of its contenders at a batch."""
        return [self.row(case) for case in act.cases() if batch in (None, case.batch)]

    def last(self, act: Act) -> list[Row]:
        """Return the rows that an act is about: those at its last batch."""
        return self.rows(act, act.batches[-1])

    def row(self, case: Case) -> Row:
        found = sorted((run.seed, o) for run, o in self.outcomes.items() if run.case == case)
        return Row(case, tuple(o for _, o in found), len(found) == len(case.seeds(self.seeds)))

    def as_json(self) -> dict[str, Any]:
        """Return every setting, version and figure. JSON has no infinities, so a loss that is not finite is null."""
        names = ("partial", "quick", "threads", "seconds")
        return {
            **{name: getattr(self, name) for name in names},
            "seeds": list(self.seeds),
            "machine": platform.platform(),
            "versions": {
                "python": platform.python_version(),
                **{name: version_of(name) or NOT_INSTALLED for name in PACKAGES},
            },
            "acts": [self._act(act) for act in self.acts],
        }

    def _act(self, act: Act) -> dict[str, Any]:
        about = {"number": act.number, "title": act.title, "task": asdict(act.task), "metric": act.task.metric}
        return {**about, "cases": [_case(row) for row in self.rows(act)]}


def _case(row: Row) -> dict[str, Any]:
    names = ("name", "batch", "steps", "lr", "lr_is", "options", "retuned")
    return {
        "optimizer": row.case.contender.optimizer,
        **{name: getattr(row.case, name) for name in names},
        "warmup_steps": row.case.recipe.warmup_steps,
        "mean": row.mean,
        "spread": statistics.pstdev(row.figures) if row.figures else 0.0,
        "runs": [_finite(asdict(o)) for o in row.outcomes],
    }


def _finite(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {key: _finite(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [_finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
