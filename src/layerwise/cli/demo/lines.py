"""Plain lines, for a pipe or a log: one for every run that is done."""

from __future__ import annotations

import sys

from layerwise.cli.demo.events import Event, Finished
from layerwise.cli.demo.outcome import Outcome
from layerwise.cli.demo.result import Result
from layerwise.cli.demo.settings import Run


class Lines:
    def __init__(self, result: Result) -> None:
        self.result, self.total, self.done = result, len(result.runs()), 0

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def see(self, event: Event) -> None:
        if isinstance(event, Finished):
            self.done += 1
            act = self.result.act_of(event.run).number
            print(f"{self.done:2} of {self.total}  act {act}  {line_of(event.run, event.outcome)}")
            sys.stdout.flush()


def line_of(run: Run, outcome: Outcome) -> str:
    return f"{run}: {figure(run, outcome)} ({outcome.bytes_per_parameter:.2f} B/param, {outcome.seconds:.1f} s)"


def figure(run: Run, outcome: Outcome) -> str:
    if outcome.diverged:
        return f"diverged at step {outcome.losses[-1][0]}"
    if run.case.task.metric == "accuracy":
        return f"accuracy {outcome.accuracy:.1f} %"
    return f"loss {outcome.loss:.3f}"
