"""Which tests call which functions of the library, for `make quick FILE=…`.

`make touched` runs tests with this as a plugin of pytest, and keeps the quickest of each function in `build/touched`, a
file for each process. What runs in other processes, such as ranks, is not seen.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "build/touched"
MOST = 6  # tests that are kept of a function
Found = dict[str, list[tuple[float, str]]]  # by file and function: seconds and names of tests


class Notes:
    """What the running test has called, and the quickest tests of each function."""

    def __init__(self) -> None:
        self._package = str(Path(find_spec("layerwise").origin).parent) + os.sep  # type: ignore[union-attr, arg-type]
        self._called: set[CodeType] = set()
        self.kept: Found = {}

    def begin(self) -> None:
        self._called = set()
        threading.settrace(self._calls)
        sys.settrace(self._calls)

    def _calls(self, frame: FrameType, *_: Any) -> None:
        self._called.add(frame.f_code)

    def end(self) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def keep(self, test: str, seconds: float) -> None:
        for code in self._called:
            if code.co_filename.startswith(self._package):
                file = f"src/layerwise/{code.co_filename.removeprefix(self._package)}"
                tests = self.kept.setdefault(f"{file}::{getattr(code, 'co_qualname', code.co_name)}", [])
                tests.append((round(seconds, 2), test))
                tests.sort()
                del tests[MOST:]

    def write(self) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        path = FOLDER / f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.json"
        path.write_text(json.dumps(self.kept, indent=0), "utf-8")


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(FOLDER, ignore_errors=True)
    config.stash[KEY] = Notes()


KEY = pytest.StashKey[Notes]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    item.config.stash[KEY].begin()
    try:
        yield
    finally:
        item.config.stash[KEY].end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    report = yield
    if report.when == "call" and report.passed:
        item.config.stash[KEY].keep(item.nodeid, call.duration)
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[KEY].write()


def tests_of(file: str, seconds: float) -> list[str]:
    """Return tests that called functions of a file, of each its quickest first, as many as take so long together."""
    found: Found = {}
    for path in sorted(FOLDER.glob("*.json")):
        for function, tests in json.loads(path.read_text("utf-8")).items():
            if function.startswith(f"{file}::"):
                found.setdefault(function, []).extend((took, test) for took, test in tests)
    chosen: dict[str, float] = {}
    for turn in range(MOST):
        for tests in found.values():
            for took, test in sorted(tests)[turn : turn + 1]:
                if sum(chosen.values()) + took <= seconds:
                    chosen[test] = took
    return [*chosen]
