"""Writing a file so that it is either whole or not there, and saying plainly why it cannot be."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from layerwise.cli import Mistake


class CannotWrite(Mistake):
    """The file asked for cannot be written; the message says why."""


def check_writable(path: Path) -> None:
    """Raise before the work begins what would otherwise be found at its end."""
    if path.is_dir():
        raise CannotWrite(f"cannot write {path}: it is a folder")
    if path.exists() and not os.access(path, os.W_OK):
        raise CannotWrite(f"cannot write {path}: no permission")
    if path.is_file() or not path.exists():  # it is written beside, then replaced
        _check_folder(path)


def _check_folder(path: Path) -> None:
    folder = (path.resolve() if path.is_symlink() else path).parent
    if not folder.is_dir():
        raise CannotWrite(f"cannot write {path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CannotWrite(f"cannot write {path}: no permission to write in {folder}")


def write_text(path: Path, text: str) -> None:
    try:
        if path.exists() and not path.is_file():  # a device or a pipe is written to, not replaced
            path.write_text(text, "utf-8")
        else:
            _replace(path.resolve(), text)
    except OSError as problem:
        raise CannotWrite(f"cannot write {path}: {problem.strerror or problem}") from None


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, "utf-8")
        if path.exists():
            shutil.copymode(path, beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
