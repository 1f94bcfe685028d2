"""A plugin of pytest that notes the test that runs and those that fail, in a file that outlives a crash."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

FILE = "LAYERWISE_MUTANT_NOTES"
STARTED, BEGAN, FAILED = "started", "began ", "failed "


def _note(line: str) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def pytest_configure() -> None:
    _note(STARTED)


def pytest_runtest_logstart(nodeid: str) -> None:
    _note(BEGAN + nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    if report.failed:
        _note(FAILED + report.nodeid)


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _note(FAILED + report.nodeid)
