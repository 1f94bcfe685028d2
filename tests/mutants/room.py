"""A room of the library, and the small errors that are made in it."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Error:
    """`old`, which is in the file exactly once, becomes `new`."""

    error: str
    file: str  # below the root of the checkout
    old: str
    new: str
    why: str = ""  # no test notices it, where none can

    @property
    def name(self) -> str:
        return f"{self.file.removeprefix('src/layerwise/')}: {self.error}"

    def broken(self) -> str:
        """Return the file with the error."""
        text = (ROOT / self.file).read_text(encoding="utf-8")
        found = text.count(self.old)
        assert found == 1, f"{self.name}: {self.old!r} is there {found} times, and not once. Give the row its new text."
        return text.replace(self.old, self.new)

    @property
    def mark(self) -> str:
        """Return what is another as soon as the error is."""
        return blake2b("\0".join((self.file, self.old, self.new)).encode(), digest_size=4).hexdigest()


@dataclass(frozen=True)
class Room:
    """Files that belong together, the tests that are nearest to them, and errors."""

    name: str
    paths: tuple[str, ...]  # below the root; a file is of the room with the longest that it begins with
    near: tuple[str, ...]  # files and folders of tests
    errors: tuple[Error, ...]
    slow: bool = False  # whether those tests need packages that `make test` does not install


def of(file: str, *rows: tuple[str, ...]) -> tuple[Error, ...]:
    """Return errors of one file of the package, or of csrc."""
    file = file if file.startswith("csrc/") else f"src/layerwise/{file}"
    return tuple(Error(row[0], file, *row[1:]) for row in rows)
