"""Files that are whole at every time: written beside their place, then moved there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

# Of a path that no file can have, such as one with NUL; and of links in a circle, before Python 3.13.
PATH_ERRORS = (OSError, ValueError, RuntimeError)


@contextmanager
def beside(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Open a new file in the folder of this one, and remove it at the end if it is still there."""
    own = path.parent / f".layerwise-{token_hex(8)}"
    file = own.open("xb")  # which fails where something is there already, if only a link
    try:
        with file:
            yield own, file
    finally:
        own.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Put a file with this text in the place of another, with its permissions."""
    with beside(path) as (own, file):
        file.write(text.encode())
        file.close()  # before it is moved, which Windows refuses for open files
        with suppress(OSError):  # a new path has no permissions, and some file systems keep none
            shutil.copymode(path, own)
        own.replace(path)


def printable(path: object) -> str:
    """Return a path as it can be shown: control characters would move the cursor or end the line."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(path))
