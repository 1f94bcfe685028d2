"""Time `step_all` of the NumPy front against what NumPy and CPU users would take instead.

All implementations of an optimizer run in one process, in turns, on the same float32 numbers and with their own
default number of threads. A ratio is a median over ours: below 1 the other is faster.
"""

from __future__ import annotations

import argparse

from rich import box
from rich.console import Console
from rich.table import Table

from layerwise.cli.bench.arrays import NUMPY_PEERS, held
from layerwise.cli.bench.shapes import SETS, parameters
from layerwise.cli.bench.timing import Timing
from rows import RESULTS, append, in_turns, provenance

OPTIMIZERS = ("Lamb", "Lars", "Adafactor")
ROUNDS = {"digits": 500, "bert-base": 15, "tiny-1000": 50}


def measure(optimizer: str, set_name: str, rounds: int) -> dict[str, Timing]:
    shapes = SETS[set_name]()
    return in_turns(optimizer, set_name, held(shapes), NUMPY_PEERS[optimizer], rounds)


def as_rows(optimizer: str, set_name: str, found: dict[str, Timing]) -> list[dict[str, object]]:
    shapes, ours = SETS[set_name](), next(iter(found.values()))
    common = {"optimizer": optimizer, "shapes": set_name, "tensors": len(shapes), "parameters": parameters(shapes)}
    return [
        {
            **common,
            "implementation": name,
            "rounds": len(timing.rounds),
            "median_ms": round(1e3 * timing.median, 4),
            "q1_ms": round(1e3 * timing.quartiles[0], 4),
            "q3_ms": round(1e3 * timing.quartiles[1], 4),
            "min_ms": round(1e3 * min(timing.rounds), 4),
            "max_ms": round(1e3 * max(timing.rounds), 4),
            "ratio": round(timing.median / ours.median, 3),
        }
        for name, timing in found.items()
    ]


def show(console: Console, rows: list[dict[str, object]]) -> None:
    first = rows[0]
    size = f"{first['parameters']:,} parameters in {first['tensors']} tensors"
    table = Table(title=f"{first['optimizer']}, {first['shapes']}: {size}", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("implementation", no_wrap=True)
    for heading in ("median ms", "quartiles", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        quartiles = f"{row['q1_ms']:,.4g} to {row['q3_ms']:,.4g}"
        table.add_row(str(row["implementation"]), f"{row['median_ms']:,.4g}", quartiles, f"{row['ratio']:.2f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rounds of the small sets; nothing is written")
    parser.add_argument("--shapes", choices=ROUNDS, action="append", help="only these sets; may be repeated")
    parser.add_argument("--no-write", action="store_true", help=f"do not append to {RESULTS.name}/numpy_front.csv")
    given = parser.parse_args()
    sets = given.shapes or [name for name in ROUNDS if not (given.quick and name == "bert-base")]
    console, origin = Console(), provenance()
    for set_name in sets:
        for optimizer in OPTIMIZERS:
            rounds = 5 if given.quick else ROUNDS[set_name]
            rows = as_rows(optimizer, set_name, measure(optimizer, set_name, rounds))
            show(console, rows)
            if not (given.quick or given.no_write):
                append(RESULTS / "numpy_front.csv", [{**row, **origin} for row in rows])


if __name__ == "__main__":
    main()
