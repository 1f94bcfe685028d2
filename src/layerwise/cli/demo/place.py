"""The place of the report, and a check that it can be written there."""

from __future__ import annotations

import os
from pathlib import Path

from layerwise.cli.files import CannotWrite, check_writable, nearest_folder, writing
from layerwise.files import beside

NAME = "layerwise-demo.html"
ENOUGH = 2_000_000  # bytes; a whole report has half of that


def report_path(out: str | Path | None) -> Path:
    """Return the report's path, in the requested folder or under the requested name; it is always an ordinary file.

    A name without a suffix, or with a slash at its end, is a folder's, also where there is none.
    """
    with writing(out):
        path = _file(out)
        check_writable(path)
        with beside(nearest_folder(path) / path.name) as (_, file):
            file.write(b" " * ENOUGH)  # what a full disk would otherwise say at the end of the work
    return path


def _file(out: str | Path | None) -> Path:
    named, path = str(out or ""), Path(out or "")
    is_folder = path.is_dir() or named.endswith(("/", os.sep)) or not (path.suffix or path.exists())
    path = path / NAME if is_folder else path
    if path.exists() and not path.is_file():
        raise CannotWrite(path, "it is no ordinary file")
    return path
