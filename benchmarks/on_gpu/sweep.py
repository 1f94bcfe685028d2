"""One tensor of growing size: where the calls end and the memory begins."""

from __future__ import annotations

from layerwise.cli.bench.display import Grid, box
from layerwise.cli.bench.measure import Row, Table
from layerwise.cli.bench.report import in_digits, wide
from on_gpu.place import Place
from on_gpu.rivals import ours, yardstick
from on_gpu.tables import Results, share

SIZES = tuple(1 << k for k in range(10, 29, 2))  # 1 K to 256 M elements
SMALL = tuple(1 << k for k in range(6, 11, 2))
WIDTH = 256


def sweep(results: Results, place: Place, optimizer: str, rounds: int) -> None:
    tables = []
    for size in SMALL if place.interpreted else SIZES:
        shapes = {"one": (max(1, size // WIDTH), min(size, WIDTH))}
        work = type(place)(place.device, place.engine).work(shapes)  # no smaller than it says
        peers = [ours(optimizer), yardstick(optimizer)]
        tables.append(results.measure("sweep", optimizer, f"one of {size}", work, peers, rounds))
        if results.enough():
            break
    show(results, optimizer, tables)


def show(results: Results, optimizer: str, tables: list[Table]) -> None:
    console = wide(results.console)
    grid = Grid(title=f"{optimizer}: one tensor", box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for heading in (
        "elements",
        "implementation",
        "step\nms",
        "step's\nquartiles",
        "ratio",
        "host\nms",
        "share of\ncopy",
    ):
        grid.add_column(heading, justify="left" if heading == "implementation" else "right", no_wrap=True)
    for table in tables:
        for row in table.rows.values():
            if row.timing.rounds:
                grid.add_row(f"{table.parameters:,}", row.label, *_cells(results, table, row))
    console.print(grid)
    for table in tables:
        for label, why in table.left_out.items():
            console.print(f"left out: {table.name}: {label}: {why}", markup=False, soft_wrap=True)


def _cells(results: Results, table: Table, row: Row) -> list[str]:
    low, high = (in_digits(1e3 * x) for x in row.timing.quartiles)
    return [
        in_digits(1e3 * row.timing.median),
        f"{low}–{high}",
        f"{row.ratio.median:.2f}" if row.ratio.rounds else "",
        in_digits(1e3 * row.host.median) if row.host.rounds else "",
        f"{share(table, row, results.copy).median:.3f}",
    ]
