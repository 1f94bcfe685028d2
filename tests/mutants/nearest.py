"""`make quick FILE=…`: the tests that noticed small errors in a file, or, if none is recorded, in files of its room."""

from __future__ import annotations

import sys
from pathlib import Path

from mutants import record
from mutants.errors import ROOT
from mutants.rooms import room_of


def nearest(file: str) -> list[str]:
    """Return these tests, each once, with all of its cases."""
    room, kept = room_of(file), record.read()
    if room is None:
        sys.exit(f"{file} is no file of the library. Pass a path such as FILE=src/layerwise/torch/step/_stepper.py.")
    of_room = [error for error in room.errors if kept.get(error.name, {}).get("test")]
    own = [error for error in of_room if error.file == file] or of_room
    found = dict.fromkeys(kept[error.name]["test"].partition("[")[0] for error in own)
    return [test for test in found if _is_there(test)]


def _is_there(test: str) -> bool:
    file, *_, name = test.split("::")
    return (ROOT / file).exists() and f"def {name}(" in (ROOT / file).read_text("utf-8")


if __name__ == "__main__":
    given = Path(sys.argv[1]).resolve()
    print(*nearest(str(given.relative_to(ROOT) if given.is_relative_to(ROOT) else given)), sep="\n")
