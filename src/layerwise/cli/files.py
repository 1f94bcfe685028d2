"""Writing a file so that it is either whole or not there, and saying plainly why it cannot be."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile


class CannotWrite(Exception):
    """The file asked for cannot be written; the message says why."""


def check_writable(path: Path) -> None:
    """Raise before the work begins what would otherwise be found at its end."""
    folder = path.parent
    if path.is_dir():
        raise CannotWrite(f"cannot write {path}: it is a folder")
    if not folder.is_dir():
        raise CannotWrite(f"cannot write {path}: there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise CannotWrite(f"cannot write {path}: no permission")


def write_text(path: Path, text: str) -> None:
    try:
        with NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False, encoding="utf-8") as file:
            file.write(text)
        Path(file.name).replace(path)
    except OSError as problem:
        raise CannotWrite(f"cannot write {path}: {problem.strerror or problem}") from None
