"""The demo from beginning to end, and every way in which it may end."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from demo.files import CannotWrite, check_writable, nearest_folder, write_text, writing
from demo.pool import WorkerError, carry_out
from demo.result import Result
from demo.settings import ACTS, SEEDS
from demo.terminal import Watch, new_console, show
from layerwise.cli.exit_codes import INTERRUPTED, forget_output
from layerwise.contrib._files import new_file_beside
from layerwise.engines.processor import available_processors

NAME = "layerwise-demo.html"
ENOUGH = 2_000_000  # bytes; a whole report has half of that
MOST_WORKERS = 8  # unless set otherwise; each has PyTorch in memory
LARGEST_SEED = 2**63 - SEEDS  # so that the last of them is one that torch takes


class UnexpectedlyNotFinite(Exception):
    """A loss that had no reason to diverge did."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0, 1 where something failed, 2 where the report cannot be written, 130 after Ctrl-C."""
    given = options().parse_args(arguments)
    result = new_result(given.act, given.quick, given.seed, given.threads)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that the terminal is left clean
    try:
        return _carried_out(result, report_path(given.out))
    except KeyboardInterrupt:
        return INTERRUPTED
    except CannotWrite as problem:
        return _said(str(problem), 2)
    except OSError as problem:
        forget_output()
        nobody_reads = isinstance(problem, BrokenPipeError)
        return 1 if nobody_reads else _said(f"cannot write to the output: {problem.strerror}", 1)
    finally:
        signal.signal(signal.SIGTERM, before)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m demo", description="Train small networks with LARS, LAMB, Adafactor and what they replace."
    )
    acts = [act.number for act in ACTS]
    add = parser.add_argument
    add("--act", type=int, action="append", choices=acts, help="1 LARS, 2 LAMB, 3 fewer bytes; may be repeated")
    add("--quick", action="store_true", help="less training and one seed: no conclusions")
    add("--out", help=f"file or folder of the report, in place of ./{NAME}")
    add("--seed", type=_whole(0, LARGEST_SEED), default=0, help="the first of the seeds")
    most = min(available_processors(), MOST_WORKERS)
    add("--threads", type=_whole(1), default=most, help="runs at the same time, each with one thread")
    return parser


def _whole(low: int, high: float = float("inf")) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"must be an integer from {low} to {high}, but is {text}")
        return int(text)

    parse.__name__ = "integer"  # as an error calls it
    return parse


def new_result(numbers: Sequence[int] | None = None, quick: bool = False, seed: int = 0, threads: int = 1) -> Result:
    asked = (replace(act, brief=True) for act in ACTS if not numbers or act.number in numbers)
    acts = tuple(act.quick() if quick else act for act in asked)
    return Result(acts, range(seed, seed + (1 if quick else SEEDS)), threads, quick)


def report_path(out: str | Path | None) -> Path:
    """Return the report's path, in the requested folder or under the requested name, if it can be written there.

    A name without a suffix, or with a slash at its end, is a folder's, also where there is none.
    """
    with writing(out):
        named, path = str(out or ""), Path(out or "")
        if path.is_dir() or named.endswith(("/", os.sep)) or not (path.suffix or path.exists()):
            path /= NAME
        if path.exists() and not path.is_file():
            raise CannotWrite(path, "it is no ordinary file")
        check_writable(path)
        with new_file_beside(nearest_folder(path) / path.name) as (_, file):
            file.write(b" " * ENOUGH)  # what a full disk would otherwise say at the end of the work
    return path


def _carried_out(result: Result, path: Path) -> int:
    """Train and show; whatever ends it, what is done is kept in a report."""
    console = new_console()
    quick = " Quick: no conclusions." if result.quick else ""
    print(f"{len(result.runs())} runs, {result.threads} at a time. The report will be {path}.{quick}", flush=True)
    try:
        train(result, Watch(console, result))
    except KeyboardInterrupt:
        _write(result, path)
        print(f"Interrupted. What was finished is in {path}.", flush=True)
        return INTERRUPTED
    except (UnexpectedlyNotFinite, WorkerError) as problem:
        _write(result, path)
        return _said(f"{problem}\nWhat was finished before is in {path}.", 1)
    except OSError:
        _write(result, path)
        raise
    _write(result, path)
    show(console, result)
    print(f"Report: {path}", flush=True)
    return 0


def train(result: Result, watch: Watch) -> None:
    """Train everything in worker processes. Finished runs stay in the result, however this ends."""
    start = perf_counter()
    result.partial = True
    try:
        # Closed, not left to garbage collection: no worker should train on while the report is written.
        with watch, closing(carry_out(result.runs(), result.threads)) as events:
            for run, outcome in events:
                result.outcomes[run] = outcome
                if outcome.diverged and not run.case.contender.may_diverge:
                    raise UnexpectedlyNotFinite(
                        f"the loss of {run} is not finite after step {outcome.losses[-1][0]}, and had no reason to be."
                    )
                watch.see(run, outcome)
        result.partial = False
    finally:
        result.seconds = perf_counter() - start


def _write(result: Result, path: Path) -> None:
    from demo.page import page  # here, because nobody should wait for matplotlib before the work begins

    write_text(path, page(result))


def _said(problem: str, code: int) -> int:
    print(f"demo: {problem}", file=sys.stderr)
    return code
