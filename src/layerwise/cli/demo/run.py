"""The demo from beginning to end, and every way in which it may end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.text import Text

from layerwise.cli.demo import table
from layerwise.cli.demo.cards import cards
from layerwise.cli.demo.events import Event, Finished, Listener
from layerwise.cli.demo.lines import Lines
from layerwise.cli.demo.place import report_path
from layerwise.cli.demo.pool import WorkerError, carry_out
from layerwise.cli.demo.result import Result
from layerwise.cli.demo.screen import Screen
from layerwise.cli.demo.settings import ACTS, SEEDS, quick
from layerwise.cli.demo.words import beware, limits
from layerwise.cli.exits import INTERRUPTED, forget_output
from layerwise.cli.files import CannotWrite, write_text
from layerwise.threads import available_processors

NEEDED = ("torch", "sklearn", "matplotlib")
MOST_WORKERS = 8  # unless set otherwise; each has PyTorch in memory
WIDEST = 100  # columns of prose


class UnexpectedlyNotFinite(Exception):
    """A loss that had no reason to diverge did."""


def main(acts: Sequence[int], is_quick: bool, out: str | Path | None, seed: int, threads: int | None) -> int:
    """Return the exit code: 0, 1 where something failed, 2 where the report could not be written, 130 after Ctrl-C."""
    check_packages()
    result = new_result(acts, is_quick, seed, threads or min(available_processors(), MOST_WORKERS))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that the terminal is left clean
    try:
        return _watched(Console(), result, report_path(out))
    except KeyboardInterrupt:
        return INTERRUPTED
    except CannotWrite as problem:
        return _reported(str(problem), 2)
    except OSError as problem:
        forget_output()
        nobody_reads = isinstance(problem, BrokenPipeError)
        return 1 if nobody_reads else _reported(f"cannot write to the output: {problem.strerror}", 1)
    finally:
        signal.signal(signal.SIGTERM, before)


def check_packages() -> None:
    """Raise for what is missing before the work begins; to import it here would only take time."""
    for package in NEEDED:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"no package {package}", name=package)


def new_result(numbers: Sequence[int], is_quick: bool, seed: int, threads: int) -> Result:
    acts = [act for act in ACTS if not numbers or act.number in numbers]
    seeds = range(seed, seed + (1 if is_quick else SEEDS))
    return Result(tuple(map(quick, acts) if is_quick else acts), seeds, threads, is_quick)


def _watched(console: Console, result: Result, path: Path) -> int:
    """Train and show; whatever ends it, what is done is kept in a report."""
    quick = " Quick: no conclusions." if result.quick else ""
    print(f"{len(result.runs())} runs, {result.threads} at a time. The report will be {path}.{quick}", flush=True)
    try:
        train(result, _listener(console, result))
    except KeyboardInterrupt:
        _write(result, path)
        print(f"Interrupted. What was finished is in {path}.", flush=True)
        return INTERRUPTED
    except (UnexpectedlyNotFinite, WorkerError) as problem:
        _write(result, path)
        return _reported(f"{problem}\nWhat was finished before is in {path}.", 1)
    except OSError:
        _write(result, path)
        raise
    _write(result, path)
    show(console, result)
    print(f"Report: {path}", flush=True)
    return 0


def _listener(console: Console, result: Result) -> Listener:
    live = sys.stdout.isatty() and not console.is_dumb_terminal  # FORCE_COLOR makes no terminal of a pipe
    return Screen(console, result) if live else Lines(result)


def train(result: Result, listener: Listener) -> None:
    """Train everything in worker processes. Finished runs stay in the result, however this ends."""
    start = perf_counter()
    result.partial = True
    try:
        # Closed, not left to garbage collection: no worker should train on while the report is written.
        with listener, closing(carry_out(result.runs(), result.threads)) as events:
            for event in events:
                _keep(result, event)
                listener.see(event)
        result.partial = False
    finally:
        result.seconds = perf_counter() - start


def _keep(result: Result, event: Event) -> None:
    if not isinstance(event, Finished):
        return
    result.outcomes[event.run] = event.outcome
    if event.outcome.diverged and not event.run.case.contender.may_diverge:
        raise UnexpectedlyNotFinite(
            f"the loss of {event.run} is not finite after step {event.outcome.losses[-1][0]}, and had no reason to be."
        )


def show(console: Console, result: Result) -> None:
    """Print the table of all acts, and what follows from it; broken into lines on a terminal only."""
    table.show(console, result)
    headlines = [f"{card.about}: {card.figure}. {card.text} {card.verdict}" for card in cards(result)]
    for text in [*beware(result), *headlines, limits(result)]:
        console.print(Text(f"{text}\n"), width=min(console.width, WIDEST), soft_wrap=not console.is_terminal)


def _write(result: Result, path: Path) -> None:
    from layerwise.cli.demo.report import page

    write_text(path, page(result))


def _reported(problem: str, code: int) -> int:
    print(f"layerwise: {problem}", file=sys.stderr)
    return code
