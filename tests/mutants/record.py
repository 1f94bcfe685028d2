"""What came of the errors: the file that keeps it, and its table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mutants.rooms import Room

HERE = Path(__file__).parent
RECORD, TABLE = HERE / "killed.json", HERE / "killed.md"
Record = dict[str, dict[str, Any]]  # by the error's name: mark, test, how, by ("near", "all" or "slow"), seconds

HEAD = """# Which errors the tests notice

Written by `make mutants`. *Near* are tests near to the room, *all* is `make test`, and *slow* are tests that need
packages which `make test` does not install.

| room | errors | run | noticed | near | all | slow | not noticed | minutes |
|---|---:|---:|---:|---:|---:|---:|---:|---:|
"""


def read() -> Record:
    found: Record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    return found


def write(record: Mapping[str, Any], rooms: tuple[Room, ...]) -> None:
    """Write what is known of errors that there are, a line for each, and the table."""
    names = [error.name for room in rooms for error in room.errors if error.name in record]
    lines = (f"{json.dumps(name)}: {json.dumps(record[name], ensure_ascii=False)}" for name in names)
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    TABLE.write_text(table(record, rooms), encoding="utf-8")


def table(record: Mapping[str, Any], rooms: tuple[Room, ...]) -> str:
    rows = [(room.name, [record.get(error.name) for error in room.errors]) for room in rooms]
    rows.append(("**all**", [one for _, found in rows for one in found]))
    return (
        HEAD + "".join(_row(name, found) for name, found in rows) + "\n" + "\n".join(_survivors(record, rooms)) + "\n"
    )


def _row(name: str, found: list[Any]) -> str:
    run = [one for one in found if one is not None]
    noticed = [one["by"] for one in run if one["test"]]
    minutes = sum(one["seconds"] for one in run) / 60
    cells = (name, len(found), len(run), len(noticed), *(noticed.count(by) for by in ("near", "all", "slow")))
    return f"| {' | '.join(map(str, cells))} | {len(run) - len(noticed)} | {minutes:.0f} |\n"


def _survivors(record: Mapping[str, Any], rooms: tuple[Room, ...]) -> Iterator[str]:
    yield "## Not noticed"
    yield ""
    found = [
        (error, record[error.name])
        for room in rooms
        for error in room.errors
        if error.name in record and not record[error.name]["test"]
    ]
    for error, one in found:
        tried = "" if one["by"] == "all" else " (of tests, those near to the room were tried)"
        yield f"- `{error.name.partition(': ')[0]}`: {error.error}{tried}. {error.why}".rstrip()
    if not found:
        yield "None of those that were run."
