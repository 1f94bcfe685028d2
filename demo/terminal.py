"""The demo on a terminal or in a pipe: a line for every finished run, then what the figures say, in ten lines."""

from __future__ import annotations

import sys
from textwrap import fill, indent

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from demo.claims import beware, caveats, story
from demo.result import Outcome, Result
from demo.settings import Run

WIDEST = 100  # columns of prose, and of everything in a pipe


def new_console() -> Console:
    live = sys.stdout.isatty()  # FORCE_COLOR makes no terminal of a pipe
    return Console(highlight=False, force_terminal=live, width=None if live else WIDEST)


class Watch:
    """Print a line when a run is done; on a terminal, a bar of them all is below."""

    def __init__(self, console: Console, result: Result) -> None:
        self._result, self._runs, self._done = result, result.runs(), 0
        shown = TextColumn("all runs"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
        hidden = not console.is_terminal or console.is_dumb_terminal
        self._bar = Progress(*shown, console=console, transient=True, disable=hidden)
        self._all = self._bar.add_task("", total=sum(run.cost for run in self._runs))

    def __enter__(self) -> Watch:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def see(self, run: Run, outcome: Outcome) -> None:
        self._done += 1
        self._bar.advance(self._all, run.cost)
        act = self._result.act_of(run).number
        print(f"{self._done:2} of {len(self._runs)}  act {act}  {line_of(run, outcome)}", flush=True)


def line_of(run: Run, outcome: Outcome) -> str:
    task = run.case.task
    figure = f"{task.metric} {getattr(outcome, task.metric) or 0:.{task.digits}f}{task.unit}"
    if outcome.diverged:
        figure = f"diverged at step {outcome.losses[-1][0]}"
    return f"{run}: {figure} ({outcome.bytes_per_parameter:.2f} B/param, {outcome.seconds:.1f} s)"


def show(console: Console, result: Result) -> None:
    """Print what each act says, and what all of it does not."""
    width = min(console.width, WIDEST)
    said = [Text("")]
    for act, headline, clear in story(result):
        lines = fill(f"{act.number}. {headline}", width, subsequent_indent="   ")
        said += [Text(lines, style="bold"), Text(indent(fill(clear, width - 3), "   "))]
    for text in (*said, *map(Text, beware(result)), Text(caveats(result), style="dim")):
        console.print(text, width=width)
