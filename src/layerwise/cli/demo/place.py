"""The place of the report, and a check that it can be written there."""

from __future__ import annotations

import os
from pathlib import Path

from layerwise.cli.files import CannotWrite, check_writable, nearest_folder

NAME = "layerwise-demo.html"
ENOUGH = 2_000_000  # bytes; a whole report has half of that


def report_path(out: str | Path | None) -> Path:
    """Return the report's path, in the requested folder or under the requested name; it is always an ordinary file.

    A name without a suffix, or with a slash at its end, is a folder's, also where there is none.
    """
    named, path = str(out or ""), Path(out or "")
    is_folder = path.is_dir() or named.endswith(("/", os.sep)) or not (path.suffix or path.exists())
    path = path / NAME if is_folder else path
    if path.exists() and not path.is_file():
        raise CannotWrite(f"cannot write {path}: it is no ordinary file")
    check_writable(path)
    _check_room(path)
    return path


def _check_room(path: Path) -> None:
    """Raise before the work begins what a full disk would say at its end."""
    trial = nearest_folder(path) / f".{path.name}.{os.getpid()}.trial"
    try:
        trial.write_bytes(b" " * ENOUGH)
    except OSError as problem:
        raise CannotWrite(f"cannot write {path}: {problem.strerror or problem}") from None
    finally:
        trial.unlink(missing_ok=True)
