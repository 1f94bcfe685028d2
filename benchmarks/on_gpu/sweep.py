"""One tensor of growing size: where the calls end and the memory begins."""

from __future__ import annotations

from harness import report
from on_gpu.place import Place
from on_gpu.rivals import ours, yardstick
from on_gpu.tables import Results, cells

SIZES = tuple(1 << k for k in range(10, 29, 2))  # 1 K to 256 M elements
SMALL = tuple(1 << k for k in range(6, 11, 2))
WIDTH = 256
SHOWN = ("step ms", "quartiles", "ratio", "host ms", "share of copy")


def sweep(results: Results, place: Place, optimizer: str, rounds: int) -> None:
    tables = []
    for size in SMALL if place.interpreted else SIZES:
        shapes = {"one": (max(1, size // WIDTH), min(size, WIDTH))}
        work = type(place)(place.device, place.engine).work(shapes)  # no smaller than it says
        peers = [ours(optimizer), yardstick(optimizer)]
        tables.extend(results.measure("sweep", optimizer, f"one of {size}", work, peers, rounds))
        if results.enough():
            break
    found = [
        {
            "implementation": row["implementation"],
            "elements": f"{table.parameters:,}",
            **{column: row[column] for column in SHOWN},
        }
        for table in tables
        for row in (cells(table, one, results.copy) for one in table.rows.values())
        if row["step ms"]
    ]
    results.say(f"{optimizer}: one tensor", *(report.aligned(found) if found else ()))
    results.say(*(f"left out: {one.name}: {label}: {why}" for one in tables for label, why in one.left_out.items()), "")
