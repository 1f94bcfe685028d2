"""The tests of the GPU engine, where there is what they need."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for path in sys.path[:2] if Path(path) == ROOT / "src"]  # where the package is not installed
NEEDED = ("pytest", "hypothesis", "ml_dtypes")
ELSEWHERE = ("test_compiles.py", "test_launches.py")  # which say nothing of the GPU at hand, and take minutes


class Outcome(NamedTuple):
    """What came of the tests: a line, whether one failed, and whether there was time for all."""

    line: str
    failed: bool
    whole: bool


def missing(root: Path = ROOT) -> str:
    """Return what the tests lack here, or an empty string."""
    gone = [name for name in NEEDED if find_spec(name) is None]
    if not (root / "tests" / "gpu").is_dir():
        gone.append("a checkout's folder tests")
    return ", ".join(gone)


def run(log: Path, seconds: float, *arguments: str) -> Outcome:
    """Run the tests for so many seconds at most, and write to this file what they print."""
    ignored = [f"--ignore=tests/gpu/{name}" for name in ELSEWHERE]
    command = [sys.executable, "-m", "pytest", *(arguments or ("tests/gpu",)), *ignored, "-q", "-p", "no:cacheprovider"]
    paths = filter(None, [str(ROOT / "tests"), *SOURCES, os.environ.get("PYTHONPATH")])
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(log.parent / "cache"),
    }
    with log.open("w", encoding="utf-8") as file:
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=env, stdout=file, stderr=subprocess.STDOUT, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            failed = bool(re.search(r"^[.sx]*[FE]", log.read_text("utf-8"), re.MULTILINE))
            return Outcome(f"tests: stopped after {seconds:.0f} s, see {log}", failed, whole=False)
    last = (log.read_text("utf-8").strip().splitlines() or ["nothing was printed"])[-1]
    return Outcome(f"tests: {last}, see {log}", done.returncode != 0, whole=True)
