"""The program that runs tests against errors; the package's docstring says how to use it."""

from __future__ import annotations

import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from signal import SIGTERM, default_int_handler, signal
from threading import Lock
from typing import Any

from mutants import record
from mutants.copies import Copies
from mutants.errors import ROOT
from mutants.rooms import ROOMS, Room
from mutants.trial import Trial

FOLDER = ROOT / "build/mutants"


class Examination:
    """Tries errors, and keeps what came of each at once."""

    def __init__(self, asked: Namespace, kept: record.Record) -> None:
        self._asked, self._kept = asked, kept
        self._copies = Copies(FOLDER)
        self._trial = Trial(asked.near_limit, asked.limit, max(1, (cpu_count() or 1) // asked.jobs))
        self._lock = Lock()

    def of(self, room: Room, error: Any) -> None:
        try:
            found = self._tried(room, error)
        except AssertionError as problem:  # the row is wrong, and the others are tried all the same
            print(f"{room.name}: {error.name}: {problem}", flush=True)
            return
        with self._lock:
            self._kept[error.name] = found
            record.write(self._kept, ROOMS)
        shown = f"{found['test']} {found['how']}" if found["test"] else "NOT NOTICED"
        print(f"{room.name}: {error.name}: {shown} ({found['seconds']} s)", flush=True)

    def stop(self) -> None:
        """End the tests that run. What they were about to tell is not kept."""
        self._trial.stop()

    def _tried(self, room: Room, error: Any) -> dict[str, Any]:
        copy = self._copies.made(error)
        try:
            found, by = self._trial.near(copy, room, self._first(error)), "slow" if room.slow else "near"
            if not found.test and not self._asked.near:
                near = found
                found, by = self._trial.whole(copy), "all"
                found = found._replace(seconds=round(near.seconds + found.seconds, 1))
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        return {"mark": error.mark, "by": by, **found._asdict()}

    def _first(self, error: Any) -> list[str]:
        """Return the files of tests that noticed other errors of the file."""
        others = (one for name, one in self._kept.items() if name.startswith(f"{error.name.partition(': ')[0]}: "))
        files = dict.fromkeys(one["test"].partition("::")[0] for one in others if one["by"] != "all")
        return [file for file in files if file.endswith(".py") and (ROOT / file).exists()]


def _arguments() -> Namespace:
    parser = ArgumentParser(prog="make mutants", description="Which errors do the tests notice?")
    parser.add_argument("--room", action="append", choices=[room.name for room in ROOMS], help="may be repeated")
    parser.add_argument("--only", default="", help="errors whose file or words contain this")
    parser.add_argument("--near", action="store_true", help="only tests near to the room")
    parser.add_argument("--jobs", type=int, default=1, help="errors at the same time")
    parser.add_argument("--again", action="store_true", help="also what is recorded")
    parser.add_argument("--table", action="store_true", help="write the table of what is recorded")
    parser.add_argument("--near-limit", type=float, default=900, help="seconds for the tests near to a room")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for all tests")
    return parser.parse_args()


def _chosen(asked: Namespace, kept: record.Record) -> Iterable[tuple[Room, Any]]:
    for room in ROOMS if asked.room is None else [room for room in ROOMS if room.name in asked.room]:
        for error in room.errors:
            known = kept.get(error.name)
            same = known is not None and known["mark"] == error.mark
            done = same and (known["test"] or known["by"] == "all" or asked.near)
            if asked.only in error.name and (asked.again or not done):
                yield room, error


def main() -> None:
    asked = _arguments()
    kept = record.read()
    if asked.table:
        record.write(kept, ROOMS)
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    examination = Examination(asked, kept)
    signal(SIGTERM, default_int_handler)
    with ThreadPoolExecutor(asked.jobs) as pool:
        try:
            for done in [pool.submit(examination.of, *one) for one in _chosen(asked, kept)]:
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            examination.stop()
            raise
    noticed = sum(bool(one["test"]) for one in kept.values())
    print(f"{noticed} of {len(kept)} errors noticed that are known here")


if __name__ == "__main__":
    main()
