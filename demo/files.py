"""Writing a file so that it is either whole or not there, and saying plainly why it cannot be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from layerwise.contrib._files import PATH_ERRORS, printable, replace_text
from layerwise.errors import LayerwiseError


class CannotWrite(LayerwiseError):
    """The file asked for cannot be written; the message says why."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(f"cannot write {printable(path)}: {why}")


@contextmanager
def writing(path: object) -> Iterator[None]:
    """Raise `CannotWrite` for what the system has against a path."""
    try:
        yield
    except PATH_ERRORS as problem:
        why = getattr(problem, "strerror", None) or printable(problem)
        raise CannotWrite(path, why) from None


def as_file(text: str) -> Path:
    """Return the path of a file, of which a folder's name is none."""
    if text.endswith(("/", os.sep)):
        raise CannotWrite(text, "it is the name of a folder; add that of a file")
    return Path(text)


def check_writable(path: Path) -> None:
    """Raise before the work begins what would otherwise be found at its end. Folders that are missing will be made."""
    with writing(path):
        with suppress(FileNotFoundError, NotADirectoryError):
            path.stat()  # which tells of links in a circle and of names that are too long
        _check_place(path)


def _check_place(path: Path) -> None:
    if path.is_dir():
        raise CannotWrite(path, "it is a folder")
    if path.exists() and not os.access(path, os.W_OK):
        raise CannotWrite(path, "no permission")
    if path.is_file() or not path.exists():  # it is written beside, then replaced
        folder = nearest_folder(path)
        if not folder.is_dir():
            raise CannotWrite(path, f"{printable(folder)} is not a folder")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise CannotWrite(path, f"no permission to write in {printable(folder)}")


def nearest_folder(path: Path) -> Path:
    """Return the folder of a file, or the closest one above that is there."""
    folder = (path.resolve() if path.is_symlink() else path).parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def write_text(path: Path, text: str) -> None:
    """Write a file, and make the folders on the way to it."""
    with writing(path):
        if path.exists() and not path.is_file():  # a device or a pipe is written to, not replaced
            path.write_text(text, "utf-8")
        else:
            path.resolve().parent.mkdir(parents=True, exist_ok=True)
            replace_text(path.resolve(), text)
