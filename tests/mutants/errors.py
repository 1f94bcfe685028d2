"""The small errors: the files in `errors/`, which read like patches.

A line that begins with `== ` names a file of the package, or of csrc. Under it stand its errors: a title, then lines
with `- `, which are in the file exactly once, and lines with `+ `, which stand there instead, or none. A line with `? `
says why no test can notice the error. Behind ` @ ` in the title of an error in the mathematics stand its oracles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Error:
    """`old`, which is in the file exactly once, becomes `new`."""

    error: str
    file: str  # below the root of the checkout
    old: str
    new: str
    why: str = ""  # no test notices it, where none can
    oracles: tuple[str, ...] = ()  # each of which has to notice it

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


def errors(name: str) -> tuple[Error, ...]:
    """Return the errors of one of the files."""
    return tuple(_read((HERE / f"errors/{name}.txt").read_text(encoding="utf-8").splitlines()))


def _read(lines: list[str]) -> Iterator[Error]:
    file, titles = "", [i for i, line in enumerate(lines) if line[:2].strip() not in {"-", "+", "?"}]
    for begin, end in zip(titles, [*titles[1:], len(lines)], strict=True):
        if lines[begin].startswith("== "):
            path = lines[begin][3:]
            file = path if path.startswith("csrc/") else f"src/layerwise/{path}"
            continue
        error, _, oracles = lines[begin].partition(" @ ")
        old, new, why = ([one[2:] for one in lines[begin:end] if one[:1] == kind] for kind in "-+?")
        yield Error(error, file, "\n".join(old), "\n".join(new), " ".join(why), tuple(oracles.split()))
