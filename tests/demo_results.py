"""Results of the demo made by hand, so that what is said of them can be tested without any training."""

from __future__ import annotations

import math

from demo.result import Outcome, Result
from demo.run import new_result
from demo.settings import Run

# By the name and the batch of a row: accuracy in percent or loss of its seeds.
USUAL = {
    ("SGD", 32): [97.0, 98.0, 97.5],
    ("SGD", 1024): [70.0, 75.0, 80.0],
    ("AdamW", 32): [97.5, 98.5, 98.0],
    ("AdamW", 1024): [93.0, 94.0, 95.0],
    ("LARS", 32): [98.0, 98.5, 98.2],
    ("LARS", 1024): [94.0, 95.0, 96.0],
    ("AdamW", 128): [2.90, 3.10],
    ("LAMB", 128): [2.80, 2.82],
    ("Muon + AdamW", 128): [2.50, 2.54],
    ("8-bit Muon + AdamW", 128): [2.53, 2.55],
}
BYTES = {"8-bit Muon + AdamW": 2.4, "Muon + AdamW": 4.8, "SGD": 4.0, "LARS": 4.0}
PARAMETERS = 1000


def outcome(run: Run, figure: float) -> Outcome:
    """A figure that is not finite is a run that diverged."""
    share = 50.0 if run.case.task.metric == "loss" else figure
    ours = run.case.contender.optimizer.startswith("layerwise")
    steps = [1, run.case.steps // 2, run.case.steps]
    done = math.isfinite(figure)
    return Outcome(
        accuracy=share if done else None,
        loss=(figure if run.case.task.metric == "loss" else 1 - figure / 100) if done else None,
        parameters=PARAMETERS,
        weight_bytes=PARAMETERS * (2 if run.case.contender.dtype == "bfloat16" else 4),
        state_bytes=round(PARAMETERS * BYTES.get(run.case.contender.name, 8.0)),
        seconds=2.0,
        losses=[(steps[0], 4.0), (steps[1], 3.0), (steps[2], figure if done else math.nan)],
        ratios=[(step, {"first": 0.01 * step, "last": 2.0} if ours else {}) for step in steps],
    )


def result(changed=None, acts=(1, 2, 3), is_quick=False) -> Result:
    """The usual figures with some changed; None is what was not finished."""
    figures = {**USUAL, **(changed or {})}
    made = new_result(acts, is_quick, 0, 2)
    for run in made.runs():
        values = figures[run.case.name, run.case.batch]
        if values is not None:
            made.outcomes[run] = outcome(run, values[run.seed])
    made.partial = len(made.outcomes) < len(made.runs())
    return made
