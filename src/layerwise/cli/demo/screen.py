"""The live screen: what is done and how long it will take, the runs under way, and the trust ratios of one of them.

It has the terminal's second screen to itself, so that nothing is left over when the terminal is resized.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from threading import Lock
from time import perf_counter

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from layerwise.cli.demo.events import Event, Moved, Started
from layerwise.cli.demo.outcome import Progress, Ratios
from layerwise.cli.demo.result import Result, Row, begun, shown
from layerwise.cli.demo.settings import Run

NAMES = 36  # columns
MOST_LAYERS = 16
NARROW = 60  # columns; on fewer a run under way is its name and its share


class Screen:
    """A listener that is also what rich draws, several times a second and at whatever size the terminal then has.

    It is drawn by a thread of rich's, and informed of events by another: the lock keeps them apart, and its result is
    a copy, because nobody locks the one that is being worked on.
    """

    def __init__(self, console: Console, result: Result) -> None:
        self.result, self.start = replace(result, outcomes=dict(result.outcomes)), perf_counter()
        self.total = sum(run.cost for run in result.runs())
        self.under_way: dict[Run, Progress | None] = {}
        self.bounds: dict[Run, tuple[float, float]] = {}
        self.lock = Lock()
        self.live = Live(self, console=console, screen=True, refresh_per_second=8)

    def __enter__(self) -> Screen:
        self.live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.__exit__(None, None, None)

    # ---- what happens

    def see(self, event: Event) -> None:
        with self.lock:
            if isinstance(event, Started):
                self.under_way[event.run] = None
            elif isinstance(event, Moved):
                self.under_way[event.run] = event.progress
                self._widen(event.run, event.progress.ratios)
            else:
                del self.under_way[event.run]
                self.result.outcomes[event.run] = event.outcome

    def _widen(self, run: Run, ratios: Ratios) -> None:
        there = [x for x in ratios.values() if 0 < x < math.inf]
        if there:
            low, high = self.bounds.get(run, (math.inf, 0.0))
            self.bounds[run] = min(low, *there), max(high, *there)

    # ---- what is drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        with self.lock:
            lines = self._lines(width, options.height or console.height)
        for line in lines:
            line.truncate(width)
            yield line

    def _lines(self, width: int, height: int) -> list[Text]:
        lines = [*self._head(width), *self._runs(width)]
        left = height - len(lines) - 3
        watched = next((run for run in self.bounds if run in self.under_way), None)  # the first that has had ratios
        if watched is not None and left >= 4:
            lines += [Text(), *self._ratios(watched, width, min(left - 1, MOST_LAYERS))]
        done = list(self._done(width))
        left = height - len(lines) - 2
        if done and left > 0:
            lines += [Text(), *done[-left:]]
        return lines

    def _share(self) -> float:
        done = sum(run.cost for run in self.result.outcomes)
        parts = (run.cost * p.step / run.case.steps for run, p in self.under_way.items() if p is not None)
        return (done + sum(parts)) / self.total

    def _head(self, width: int) -> Iterable[Text]:
        share, runs = self._share(), len(self.result.runs())
        seconds = perf_counter() - self.start
        left = "" if share < 0.02 else f"{clock(seconds * (1 - share) / share)} left"
        right = f"  {100 * share:3.0f} %  {left:10}"
        yield Text(f"layerwise demo: {len(self.result.outcomes)} of {runs} runs done", style="bold")
        yield Text.assemble((bar(share, width - len(right) - 1), "cyan"), right)
        current = next(iter(self.under_way), None)
        act = None if current is None else self.result.act_of(current)
        yield Text("" if act is None else f"Act {act.number}. {act.title}", style="dim")

    def _runs(self, width: int) -> Iterable[Text]:
        for run, progress in self.under_way.items():
            share = 0.0 if progress is None else progress.step / run.case.steps
            loss = "getting ready" if progress is None else f"loss {progress.loss:.3f}"
            if width < NARROW:
                yield Text.assemble(f"{run!s:{width - 6}.{width - 6}} " if width > 6 else "", f"{100 * share:3.0f} %")
                continue
            space = max(6, width - NAMES - len("getting ready") - 3)
            yield Text.assemble(f"{run!s:{NAMES}.{NAMES}} ", (bar(share, space), "green"), f" {loss}")

    def _ratios(self, run: Run, width: int, room: int) -> Iterable[Text]:
        progress = self.under_way[run]
        ratios = {} if progress is None else progress.ratios
        low, high = decades(*self.bounds[run])
        yield Text.assemble((f"Trust ratios: {run}", "bold"), " (log scale)")
        names = max(map(len, ratios), default=0)
        space = max(8, min(60, width - names - 12))
        for name, x in list(ratios.items())[: room - 1]:
            yield Text.assemble(f"{name:{names}}  ", (log_mark(x, low, high, space), "magenta"), f" {x:.3g}")
        yield Text(f"{'':{names}}  {axis(low, high, space)}", style="dim")

    def _done(self, width: int) -> Iterable[Text]:
        return (Text(line_of(row, width), style="dim") for row in begun(self.result) if row.done)


def line_of(row: Row, width: int) -> str:
    if width < NARROW:
        return f"{row.case}: {shown(row).removesuffix(' %')}"
    return f"{row.case!s:{NAMES}.{NAMES}} {row.case.task.metric} {shown(row)}"


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def bar(share: float, width: int) -> str:
    filled = round(max(0.0, min(1.0, share)) * max(width, 0))
    return "━" * filled + "─" * (width - filled)


def decades(low: float, high: float) -> tuple[float, float]:
    """Return the powers of ten around these, at least one apart."""
    below, above = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return 10.0**below, 10.0 ** max(above, below + 1)


def log_mark(x: float, low: float, high: float, width: int) -> str:
    """Return a mark at the number's place; a bar of a logarithm would have no zero to begin at."""
    if not 0 < x < math.inf:
        return " " * width
    share = (math.log10(x) - math.log10(low)) / (math.log10(high) - math.log10(low))
    return (" " * round((width - 1) * max(0.0, min(1.0, share))) + "●").ljust(width)


def axis(low: float, high: float, width: int) -> str:
    """Return the powers of ten at their places."""
    first, last = round(math.log10(low)), round(math.log10(high))
    line = [" "] * (width + 8)
    free = 0
    for power in range(first, last + 1):
        label: Sequence[str] = f"{10.0**power:g}"
        at = round(width * (power - first) / (last - first))
        if at >= free:
            line[at : at + len(label)] = label
            free = at + len(label) + 1
    return "".join(line).rstrip()
