"""Writing a file so that it is either whole or not there, and saying plainly why it cannot be."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from layerwise.cli import Mistake


class CannotWrite(Mistake):
    """The file asked for cannot be written; the message says why."""


def as_file(text: str) -> Path:
    """Return the path of a file, of which a folder's name is none."""
    if text.endswith(("/", os.sep)):
        raise CannotWrite(f"cannot write {text}: it is the name of a folder; add that of a file")
    return Path(text)


def check_writable(path: Path) -> None:
    """Raise before the work begins what would otherwise be found at its end. Folders that are missing will be made."""
    if path.is_dir():
        raise CannotWrite(f"cannot write {path}: it is a folder")
    if path.exists() and not os.access(path, os.W_OK):
        raise CannotWrite(f"cannot write {path}: no permission")
    if path.is_file() or not path.exists():  # it is written beside, then replaced
        folder = nearest_folder(path)
        if not folder.is_dir():
            raise CannotWrite(f"cannot write {path}: {folder} is not a folder")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise CannotWrite(f"cannot write {path}: no permission to write in {folder}")


def nearest_folder(path: Path) -> Path:
    """Return the folder of a file, or the closest one above that is there."""
    folder = (path.resolve() if path.is_symlink() else path).parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def write_text(path: Path, text: str) -> None:
    """Write a file, and make the folders on the way to it."""
    try:
        if path.exists() and not path.is_file():  # a device or a pipe is written to, not replaced
            path.write_text(text, "utf-8")
        else:
            path.resolve().parent.mkdir(parents=True, exist_ok=True)
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
