"""Time a jitted step of the JAX front, and its compilation, against optax's.

Parameters and state are donated, and all implementations of an optimizer run in one process, in turns. A ratio is a
median over ours: below 1 the other is faster. optax.adamw stands for what the memory allows.
"""

from __future__ import annotations

import argparse
import gc
import time

from rich.console import Console

from layerwise.cli.bench.arrays import JAX_PEERS, Jitted, held
from layerwise.cli.bench.shapes import SETS
from layerwise.cli.bench.timing import alternately
from numpy_front import as_rows, show
from rows import RESULTS, append, provenance

OPTIMIZERS = ("Lamb", "Lars", "Adafactor")
ROUNDS = {"bert-base": 11, "tiny-1000": 31}
TABLE = "jax_front.csv"


def compile_time(step: Jitted) -> float:
    """The shorter of two."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        step.compile()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def measure(optimizer: str, set_name: str, rounds: int) -> list[dict[str, object]]:
    work = held(SETS[set_name]())
    steps = {peer.label: peer.start(work) for peer in JAX_PEERS[optimizer]}
    compiling = [compile_time(step) for step in steps.values()]
    rows = as_rows(optimizer, set_name, alternately({label: step.step for label, step in steps.items()}, rounds))
    for row, seconds in zip(rows, compiling, strict=True):
        row["compile_s"] = round(seconds, 3)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rounds of the small set; nothing is written")
    parser.add_argument("--shapes", choices=ROUNDS, action="append", help="only these sets; may be repeated")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, action="append", help="only these; may be repeated")
    parser.add_argument("--no-write", action="store_true", help=f"do not append to {RESULTS.name}/{TABLE}")
    given = parser.parse_args()
    console, origin = Console(), provenance()
    for set_name in given.shapes or (["tiny-1000"] if given.quick else ROUNDS):
        for optimizer in given.optimizer or OPTIMIZERS:
            rows = measure(optimizer, set_name, 3 if given.quick else ROUNDS[set_name])
            show(console, rows)
            console.print("compile s:", ", ".join(f"{row['implementation']} {row['compile_s']}" for row in rows))
            if not (given.quick or given.no_write):
                append(RESULTS / TABLE, [{**row, **origin} for row in rows])
            gc.collect()  # what an optimizer held goes before the next ones come


if __name__ == "__main__":
    main()
