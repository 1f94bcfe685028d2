"""Writing a file so that it is either whole or not there, and saying plainly why it cannot be."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile


class CannotWrite(Exception):
    """The file asked for cannot be written; the message says why."""


def check_writable(path: Path, size: int) -> None:
    """Raise before the work begins what would otherwise be found at its end: `size` bytes are written and removed."""
    folder = path.parent
    if path.is_dir():
        raise CannotWrite(f"cannot write {path}: it is a folder")
    if path.exists() and not path.is_file():
        raise CannotWrite(f"cannot write {path}: it is not an ordinary file")
    if not folder.is_dir():
        raise CannotWrite(f"cannot write {path}: there is no folder {folder}")
    if path.exists() and not os.access(path, os.W_OK):
        raise CannotWrite(f"cannot write {path}: no permission")
    Path(_beside(path, " " * size)).unlink()


def write_text(path: Path, text: str) -> None:
    """By a file beside it that takes its place when it is complete, with the permissions a new file gets."""
    written = Path(_beside(path, text))
    try:
        written.chmod(0o666 & ~_umask())
        written.replace(path)
    except OSError as problem:
        written.unlink(missing_ok=True)
        raise _cannot(path, problem) from None


def _beside(path: Path, text: str) -> str:
    name = None
    try:
        with NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False, encoding="utf-8") as file:
            name = file.name
            file.write(text)
    except OSError as problem:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        raise _cannot(path, problem) from None
    return name


def _cannot(path: Path, problem: OSError) -> CannotWrite:
    return CannotWrite(f"cannot write {path}: {problem.strerror or problem}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
