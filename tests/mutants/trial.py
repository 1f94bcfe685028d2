"""The tests against a copy of the package."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from mutants.noting import BEGAN, FAILED, FILE
from mutants.room import ROOT, Room

FAST = ("-m", "not slow")
PASSED, NOTHING = 0, 5  # of pytest's exit codes


class Found(NamedTuple):
    """The test that noticed an error, or an empty string; how; and how long that took."""

    test: str
    how: str
    seconds: float


class Trial:
    """Runs tests with a folder whose packages are found first."""

    def __init__(self, near_limit: float, limit: float, workers: int) -> None:
        self._near_limit, self._limit, self._workers = near_limit, limit, workers
        self._fair: dict[str, bool] = {}  # tests that pass without an error

    def near(self, copy: Path, room: Room) -> Found:
        """Run the tests near to a room."""
        return self._noticed(copy, ["-n", "0", *(() if room.slow else FAST), *room.near], self._near_limit)

    def whole(self, copy: Path) -> Found:
        """Run what `make test` runs."""
        return self._noticed(copy, ["-n", str(self._workers), "--dist", "loadfile", *FAST], self._limit)

    def _noticed(self, copy: Path, arguments: Sequence[str], limit: float) -> Found:
        """Return the first test that fails, but not without the error."""
        unfair: list[str] = []
        seconds = 0.0
        while True:
            own = [*arguments, *(f"--deselect={test}" for test in unfair)]
            test, how, took = self._run(copy, own, limit - seconds)
            seconds += took
            if not test or self._is_fair(test):
                return Found(test, how, round(seconds, 1))
            unfair.append(test)

    def _is_fair(self, test: str) -> bool:
        if test not in self._fair:
            self._fair[test] = not self._run(None, ["-n", "0", test], self._near_limit).test
        return self._fair[test]

    def _run(self, copy: Path | None, arguments: Sequence[str], limit: float) -> Found:
        with tempfile.TemporaryDirectory() as folder:
            notes = Path(folder) / "notes"
            first = [str(ROOT / "tests")] if copy is None else [str(copy), str(ROOT / "tests")]
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(first),
                "HYPOTHESIS_STORAGE_DIRECTORY": folder,  # what fails for one error is not tried first for the next
                FILE: str(notes),
            }
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "mutants.noting"]
            began = monotonic()
            code = _code([*command, *arguments], environment, limit)
            return _found(code, notes, monotonic() - began)


def _code(command: Sequence[str], environment: dict[str, str], limit: float) -> int | None:
    """Return a program's exit code, or None where it took too long and was ended with all that it began."""
    running = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return running.wait(max(1.0, limit))
    except subprocess.TimeoutExpired:
        return None
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def _found(code: int | None, notes: Path, seconds: float) -> Found:
    lines = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    began = next((line.removeprefix(BEGAN) for line in reversed(lines) if line.startswith(BEGAN)), "collection")
    failed = next((line.removeprefix(FAILED) for line in lines if line.startswith(FAILED)), None)
    if code in (PASSED, NOTHING):
        return Found("", "", seconds)
    if code is None:
        return Found(began, "does not end", seconds)
    return Found(failed or began, "fails" if failed else "crashes", seconds)
