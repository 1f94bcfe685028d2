"""The place of the report, and a check that it can be written there."""

from __future__ import annotations

import os
from pathlib import Path

from layerwise.cli.files import CannotWrite, check_writable

NAME = "layerwise-demo.html"
ENOUGH = 2_000_000  # bytes; a whole report has half of that


def report_path(out: Path | None) -> Path:
    """Return the report's path, in the requested folder or under the requested name; it is always an ordinary file.

    A name without a suffix is a folder's, also where there is none.
    """
    out = out or Path()
    path = out / NAME if out.is_dir() or not (out.suffix or out.exists()) else out
    if path.exists() and not path.is_file():
        raise CannotWrite(f"cannot write {path}: it is no ordinary file")
    check_writable(path)
    _check_room(path)
    return path


def _check_room(path: Path) -> None:
    """Raise before the work begins what a full disk would say at its end."""
    trial = path.with_name(f".{path.name}.{os.getpid()}.trial")
    try:
        trial.write_bytes(b" " * ENOUGH)
    except OSError as problem:
        raise CannotWrite(f"cannot write {path}: {problem.strerror or problem}") from None
    finally:
        trial.unlink(missing_ok=True)
