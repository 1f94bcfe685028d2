"""The demo on a terminal or in a pipe: a line for every finished run, then the table of all acts and what follows."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from demo.claims import beware, caption, cards, limits
from demo.pool import Seen
from demo.result import Outcome, Result
from demo.settings import Act, Run

WIDEST = 100  # columns of prose, and of everything in a pipe


def new_console() -> Console:
    live = sys.stdout.isatty()  # FORCE_COLOR makes no terminal of a pipe
    return Console(highlight=False, force_terminal=live, width=None if live else WIDEST)


class Watch:
    """Print a line when a run is done; on a terminal, bars of those under way are below."""

    def __init__(self, console: Console, result: Result) -> None:
        self._result, self._runs, self._done, self._bar_of = result, result.runs(), 0, dict[Run, int]()
        shown = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[loss]}")
        hidden = not console.is_terminal or console.is_dumb_terminal
        self._bars = Bars(*shown, TimeRemainingColumn(), console=console, transient=True, disable=hidden)
        self._all = self._bars.add_task("all runs", total=sum(run.cost for run in self._runs), loss="")

    def __enter__(self) -> Watch:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def see(self, seen: Seen) -> None:
        run, news = seen
        if isinstance(news, Outcome):
            self._done += 1
            self._bars.remove_task(self._bar_of.pop(run))  # type: ignore[arg-type]
            self._bars.advance(self._all, run.cost)
            act = self._result.act_of(run).number
            print(f"{self._done:2} of {len(self._runs)}  act {act}  {line_of(run, news)}", flush=True)
        elif news.step == 0:
            self._bar_of[run] = self._bars.add_task(f"  {run}", total=run.case.steps, loss="getting ready")
        else:
            self._bars.update(self._bar_of[run], completed=news.step, loss=f"loss {news.loss:.3f}")  # type: ignore[arg-type]


def line_of(run: Run, outcome: Outcome) -> str:
    task = run.case.task
    figure = f"{task.metric} {getattr(outcome, task.metric) or 0:.{task.digits}f}{task.unit}"
    if outcome.diverged:
        figure = f"diverged at step {outcome.losses[-1][0]}"
    return f"{run}: {figure} ({outcome.bytes_per_parameter:.2f} B/param, {outcome.seconds:.1f} s)"


def show(console: Console, result: Result) -> None:
    """Print the table of each act, and what follows from them."""
    for act in result.acts:
        console.print(table(result, act))
    console.print(Text(f"\n{caption(result)}\n", style="dim"))
    for text in [*beware(result), *map(str, cards(result)), limits(result)]:
        console.print(Text(f"{text}\n"), width=min(console.width, WIDEST))


def table(result: Result, act: Act) -> Table:
    """Return a table with a row for each contender."""
    title = f"Act {act.number}: {act.task.data}, {act.task.figure}"
    made = Table(title=title, title_style="bold cyan", title_justify="left", box=None, pad_edge=False)
    made.add_column("optimizer", overflow="fold")
    for heading in headings(act):
        made.add_column(heading, justify="right", overflow="fold")
    for cells in figures(result, act):
        made.add_row(*(cell.removesuffix(" %") for cell in cells))
    return made


def headings(act: Act) -> list[str]:
    small, large = (f"batch {batch:,}" for batch in (act.task.small, act.task.large))
    return [*[small, f"{large}, scaled", f"{large}, re-tuned"][: len(act.columns)], "bytes a parameter"]


def figures(result: Result, act: Act) -> Iterator[list[str]]:
    """Yield the cells of each contender: its name, its figure at each batch, and what it keeps."""
    for rows in zip(*(result.rows(act, *column) for column in act.columns), strict=True):
        kept = rows[0].bytes
        yield [rows[0].case.contender.name, *map(str, rows), "" if kept is None else f"{kept:.2f}"]
