"""`make quick FILE=…`: the tests that noticed small errors in a file, and the quickest that call its functions.

The latter are known where `make touched` has been run. If there are none of either, those that noticed errors in its
room.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from touched import tests_of

from mutants import record
from mutants.errors import ROOT, Error
from mutants.rooms import room_of

SECONDS = 10.0  # of tests that call a file's functions


def nearest(file: str) -> list[str]:
    """Return these tests, each once: those that noticed errors with all of their cases."""
    room, kept = room_of(file), record.read()
    if room is None:
        sys.exit(f"{file} is no file of the library. Pass a path such as FILE=src/layerwise/torch/step/_stepper.py.")
    noticed = [error for error in room.errors if kept.get(error.name, {}).get("test")]
    found, called = _noticed(kept, [one for one in noticed if one.file == file]), tests_of(file, SECONDS)
    if not found and not called:
        found = _noticed(kept, noticed)
    more = (test for test in called if test.partition("[")[0] not in found)
    return [test for test in (*found, *more) if _is_there(test)]


def _noticed(kept: record.Record, some: Sequence[Error]) -> dict[str, None]:
    return dict.fromkeys(kept[error.name]["test"].partition("[")[0] for error in some)


def _is_there(test: str) -> bool:
    file, *_, name = test.partition("[")[0].split("::")
    return (ROOT / file).exists() and f"def {name}(" in (ROOT / file).read_text("utf-8")


if __name__ == "__main__":
    given = Path(sys.argv[1]).resolve()
    print(*nearest(str(given.relative_to(ROOT) if given.is_relative_to(ROOT) else given)), sep="\n")
