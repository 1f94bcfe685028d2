"""The tests against a copy of the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import local
from typing import Any, NamedTuple

from mutants.errors import ROOT
from mutants.noting import BEGAN, FAILED, FILE
from mutants.rooms import Room

FAST = ("-m", "not slow")
ALWAYS = (
    "-x",
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "mutants.noting",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
)
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
        self._own, self._servers = local(), list[Any]()

    def near(self, copy: Path, room: Room, first: Sequence[str] = ()) -> Found:
        """Run the tests near to a room, some of their files first: to collect all of them takes seconds."""
        own = ["-n", "0", *(() if room.slow else FAST), *(("-k", room.name) if room.api else ())]
        found = self._noticed(copy, [*own, *first], self._near_limit) if first else Found("", "", 0)
        if found.test:
            return found
        rest = self._noticed(copy, [*own, *room.near], self._near_limit)
        return rest._replace(seconds=round(found.seconds + rest.seconds, 1))

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
                "PYTHONPATH": os.pathsep.join(first),
                "HYPOTHESIS_STORAGE_DIRECTORY": folder,  # what fails for one error is not tried first for the next
                FILE: str(notes),
            }
            asked = {"arguments": [*ALWAYS, *arguments], "environment": environment, "limit": limit}
            code, seconds = self._answer(asked)
            return _found(code, notes, seconds)

    def _answer(self, asked: dict[str, Any]) -> tuple[int | None, float]:
        """Return the exit code, or None where tests took too long and were ended, and processor seconds."""
        server = self._server()
        server.stdin.write(f"{json.dumps(asked)}\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        if not answer:
            raise Stopped
        code, seconds = json.loads(answer)
        return code, seconds

    def _server(self) -> Any:
        """Return the server of this thread."""
        if not hasattr(self._own, "server"):
            command = [sys.executable, "-m", "mutants.server"]
            environment = {**os.environ, "TRITON_INTERPRET": "1"}  # which Triton reads while it is imported
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            running = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, start_new_session=True, **pipes)
            self._own.server = running
            self._servers.append(running)
        return self._own.server

    def stop(self) -> None:
        """End the tests that run."""
        for server in self._servers:
            server.terminate()


def _found(code: int | None, notes: Path, seconds: float) -> Found:
    lines = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    began = next((line.removeprefix(BEGAN) for line in reversed(lines) if line.startswith(BEGAN)), COLLECTION)
    failed = next((line.removeprefix(FAILED) for line in lines if line.startswith(FAILED)), None)
    if code in (PASSED, NOTHING):
        return Found("", "", seconds)
    if code is None:
        return Found(began, "does not end", seconds)
    return Found(failed or began, "fails" if failed else "crashes", seconds)
