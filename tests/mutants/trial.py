"""The tests against a copy of the package."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any, NamedTuple

from mutants.noting import BEGAN, FAILED, FILE
from mutants.room import ROOT, Room

FAST = ("-m", "not slow")
PASSED, NOTHING = 0, 5  # of pytest's exit codes
COLLECTION = "collection"  # in place of a test's name where none began


class Stopped(Exception):
    """The trial was ended from outside."""


class Found(NamedTuple):
    """The test that noticed an error, or an empty string; how; and the seconds that processors took for it."""

    test: str
    how: str
    seconds: float


class Trial:
    """Runs tests with a folder whose packages are found first."""

    def __init__(self, near_limit: float, limit: float, workers: int) -> None:
        self._near_limit, self._limit, self._workers = near_limit, limit, workers
        self._fair: dict[str, bool] = {}  # tests that pass without an error
        self.stopped = Event()

    def near(self, copy: Path, room: Room, first: Sequence[str] = ()) -> Found:
        """Run the tests near to a room, some of their files first."""
        return self._noticed(copy, ["-n", "0", *(() if room.slow else FAST), *first, *room.near], self._near_limit)

    def whole(self, copy: Path) -> Found:
        """Run what `make test` runs."""
        return self._noticed(copy, ["-n", str(self._workers), "--dist", "loadfile", *FAST], self._limit)

    def _noticed(self, copy: Path, arguments: Sequence[str], limit: float) -> Found:
        """Return the first test that fails, but not without the error."""
        unfair: list[str] = []
        seconds = 0.0
        while True:
            own = [*arguments, *(f"--deselect={test}" for test in unfair)]
            test, how, took = self._run(copy, own, limit)
            seconds += took
            if not test or self._is_fair(test):
                return Found(test, how, round(seconds, 1))
            assert test not in unfair, f"{test} {how}, as it does without the error, and ends the other tests"
            unfair.append(test)

    def _is_fair(self, test: str) -> bool:
        if test not in self._fair:
            own = [test] if "::" in test else ["--collect-only", *((test,) if test != COLLECTION else ())]
            self._fair[test] = not self._run(None, ["-n", "0", *own], self._near_limit).test
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
            silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
            running = subprocess.Popen([*command, *arguments], cwd=ROOT, env=environment, **silent)
            return _found(*self._waited(running, notes, limit))

    def _waited(self, running: Any, notes: Path, limit: float) -> tuple[int | None, Path, float]:
        """Return the exit code, or None where tests took too long and were ended; the notes; and processor seconds.

        Time counts from the first note.
        """
        began, ended = None, False
        while True:
            pid, status, used = os.wait4(running.pid, os.WNOHANG)
            if pid:
                running.returncode = os.waitstatus_to_exitcode(status)
                if self.stopped.is_set():
                    raise Stopped
                return None if ended else running.returncode, notes, used.ru_utime + used.ru_stime
            began = monotonic() if began is None and notes.exists() else began
            if not ended and (self.stopped.is_set() or (began is not None and monotonic() - began > limit)):
                os.killpg(running.pid, signal.SIGKILL)
                ended = True
            sleep(0.1)


def _found(code: int | None, notes: Path, seconds: float) -> Found:
    lines = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    began = next((line.removeprefix(BEGAN) for line in reversed(lines) if line.startswith(BEGAN)), COLLECTION)
    failed = next((line.removeprefix(FAILED) for line in lines if line.startswith(FAILED)), None)
    if code in (PASSED, NOTHING):
        return Found("", "", seconds)
    if code is None:
        return Found(began, "does not end", seconds)
    return Found(failed or began, "fails" if failed else "crashes", seconds)
