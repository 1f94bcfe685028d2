"""Rows with their provenance."""

from __future__ import annotations

import csv
import subprocess
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.measure import measure, tables_of
from harness.memory import available
from harness.peers import Peer
from harness.report import aligned, origin
from harness.timing import Clock, Step, Timing, wall
from layerwise.engines.processor import available_processors

RESULTS = Path(__file__).parent / "results"


def provenance() -> dict[str, str]:
    return {**origin(), "commit": _commit()}


def in_turns(optimizer: str, set_name: str, work: Any, peers: Sequence[Peer], rounds: int) -> dict[str, Timing]:
    """The times of those that are installed, ours first; in groups, where not all fit the memory side by side."""
    found: dict[str, Timing] = {}
    for table, together in tables_of(optimizer, set_name, work, available_processors(), peers, 0.9 * available()):
        measure(table, together, work, rounds)
        for label, why in table.left_out.items():
            print(f"left out: {label}: {why}")
        found = {label: row.timing for label, row in table.rows.items() if row.timing.rounds} | found
    return found


def alternately(
    steps: Mapping[str, Step],
    rounds: int,
    warmup: int = 2,
    together: Callable[[], object] = lambda: None,
    clock: Clock = wall,
) -> dict[str, Timing]:
    """Time steps in turns, so that whatever else the machine does meets them alike.

    Processes that take their steps together wait for one another in `together`, which is not timed.
    """
    found = {name: Timing() for name in steps}
    for round_ in range(-warmup, rounds):
        for name, step in steps.items():
            together()
            _, seconds = clock(step)
            if round_ >= 0:
                found[name].rounds.append(seconds)
    return found


def figures(timing: Timing, base: Timing) -> dict[str, object]:
    """The columns of what was timed beside what."""
    low, high = timing.quartiles
    milliseconds = {"median_ms": timing.median, "q1_ms": low, "q3_ms": high, "min_ms": min(timing.rounds)}
    return {
        "rounds": len(timing.rounds),
        **{name: round(1e3 * seconds, 4) for name, seconds in milliseconds.items()},
        "ratio": round(timing.median / base.median, 3),
    }


def show(title: str, rows: Sequence[Mapping[str, object]], columns: Sequence[str] = ()) -> None:
    """Print these columns, or all."""
    print(title, *aligned([{name: str(row[name]) for name in columns or row} for row in rows]), "", sep="\n")


def parser_of(about: str | None, table: str) -> ArgumentParser:
    """The options of a script that appends to a table, one for all of them."""
    parser = ArgumentParser(description=about, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--no-write", action="store_true", help=f"do not write to {RESULTS.name}/{table}")
    return parser


def read(path: Path, **only: str) -> list[dict[str, str]]:
    """The rows of a table that have these values; of one that is not there, none."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if only.items() <= row.items()]


def supersede(path: Path, rows: Sequence[Mapping[str, object]], *key: str) -> None:
    """Add rows in the place of those that have their values in these columns."""
    places = {tuple(str(row[name]) for name in key) for row in rows}
    kept = [row for row in read(path) if tuple(row[name] for name in key) not in places]
    path.unlink(missing_ok=True)
    append(path, [*kept, *rows])


def append(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Add rows to a table that keeps its columns, and their order."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a+", newline="", encoding="utf-8") as file:
        file.seek(0)
        there = next(csv.reader(file), None)
        writer = csv.DictWriter(file, there or list(rows[0]), lineterminator="\n")
        if there is None:
            writer.writeheader()
        writer.writerows(rows)


def _commit() -> str:
    command = ("git", "describe", "--always", "--dirty")
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:  # no git here
        return ""
    return done.stdout.strip()
