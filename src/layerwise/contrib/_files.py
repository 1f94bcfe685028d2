"""Files that are never half written: they are written next to their place, then moved there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

# Raised for impossible paths, such as one with NUL, and before Python 3.13 for circular links.
PATH_ERRORS = (OSError, ValueError, RuntimeError)


@contextmanager
def new_file_beside(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Open a new file in the same folder, and remove it in the end if it is still there."""
    own = path.parent / f".layerwise-{token_hex(8)}"
    file = own.open("xb")  # fails if something exists there, even a link
    try:
        with file:
            yield own, file
    finally:
        own.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Replace a file by one with this text and the same permissions."""
    with new_file_beside(path) as (own, file):
        file.write(text.encode())
        file.close()  # before it is moved: Windows refuses to move open files
        with suppress(OSError):  # a new path has no permissions, and some file systems have none
            shutil.copymode(path, own)
        own.replace(path)


def printable(path: object) -> str:
    """Return a path as printable text: control characters would move the cursor or end the line."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(path))
