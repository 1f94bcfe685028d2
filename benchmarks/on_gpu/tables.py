"""Timed tables: whole models, one tensor of growing size, a captured step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import torch

from harness import report
from harness.measure import Row, Table, measure, tables_of
from harness.peers import Peer
from harness.tensors import free
from harness.timing import Timing
from on_gpu.traffic import Copy, bytes_each, kind_of, stored_as

ROOM = 0.9  # of what is free may be taken


@dataclass
class Results:
    """All that was timed, and what it is held against."""

    out: TextIO
    copy: Copy
    enough: Callable[[], bool] = bool
    tables: list[tuple[str, Table]] = field(default_factory=list)  # each with the part it belongs to
    _written: int = 0

    def measure(
        self, part: str, optimizer: str, name: str, work: Any, peers: Sequence[Peer], rounds: int
    ) -> list[Table]:
        """Time them in turns; the first is what the others are compared with."""
        room, found = ROOM * free(work.device), []
        for table, together in tables_of(optimizer, name, work, torch.get_num_threads(), peers, room):
            self.tables.append((part, table))
            found.append(table)
            measure(table, together, work, rounds, self.enough)
        return found

    def show(self, tables: Sequence[Table]) -> None:
        for table in tables:
            self.say(*report.lines(table, lambda row, table=table: cells(table, row, self.copy)))

    def say(self, *lines: str) -> None:
        print(*lines, sep="\n", file=self.out)

    def find(self, optimizer: str, name: str, label: str, dtype: str = "float32") -> Row | None:
        """The first that was timed of these."""
        found = [
            table.rows[label]
            for _, table in self.tables
            if (table.optimizer, table.name, table.dtype) == (optimizer, name, dtype) and label in table.rows
        ]
        return next((row for row in found if row.timing.rounds), None)

    def new_rows(self) -> list[dict[str, object]]:
        """What is to be written of the tables since the last time, a line for each implementation."""
        new, self._written = self.tables[self._written :], len(self.tables)
        return [
            {"part": part, **report.common(table), **report.figures(row), **figures(table, row, self.copy)}
            for part, table in new
            for row in table.rows.values()
            if row.timing.rounds
        ]


def moved(table: Table, row: Row) -> float:
    """The bytes that this step has to move."""
    return table.parameters * bytes_each(kind_of(row.label, table.optimizer), table.dtype, stored_as(row.label))


def share(table: Table, row: Row, copy: Copy) -> Timing:
    """Of the rate of copying, in each round."""
    predicted = copy.seconds(moved(table, row))
    return Timing([predicted / seconds for seconds in row.timing.rounds])


def cells(table: Table, row: Row, copy: Copy) -> dict[str, str]:
    """The columns of a row, and those that tell the device's memory."""
    shown = report.cells(row)
    if not row.timing.rounds:
        return shown | dict.fromkeys(("bytes, B/param", "at copy's rate, ms", "share of copy"), "")
    need = moved(table, row)
    return shown | {
        "bytes, B/param": f"{need / table.parameters:g}",
        "at copy's rate, ms": report.in_digits(1e3 * copy.seconds(need)),
        "share of copy": f"{share(table, row, copy).median:.3f}",
    }


def figures(table: Table, row: Row, copy: Copy) -> dict[str, object]:
    need = moved(table, row)
    return {
        "counted_bytes_per_parameter": need / table.parameters,
        "copy_gb_per_s": round(copy.rate / 1e9, 1),
        "predicted_ms": round(1e3 * copy.seconds(need), 5),
        "share_of_copy": round(share(table, row, copy).median, 4),
    }


def legend(copy: Copy, on_gpu: bool) -> list[str]:
    """How the columns are to be read."""
    step = (
        "the GPU's time between two events around one step, asked for while the GPU was still held up"
        if on_gpu
        else "until the call returned"
    )
    host = "until the call returned, the GPU idle before" if on_gpu else "the step of as many tensors of one element"
    return [
        f"step: {step}; median, in turns in one process. host: {host}.",
        "ratio: to the first of the table, in the same round. peak: beside parameters, gradients and state.",
        "bytes: what the method has to read and write, with a state of float32 or in the format that is named.",
        f"at copy's rate: what these bytes take at {copy.rate / 1e9:,.0f} GB/s, which is what copying reached here.",
    ]
