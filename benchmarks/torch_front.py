"""Time `step` of the PyTorch front against the optimizers that PyTorch users would take instead.

All implementations of an optimizer run in one process, in turns, on the same float32 numbers and with PyTorch's own
number of threads. A ratio is a median over ours: below 1 the other is faster. timm is measured where it is installed.
"""

from __future__ import annotations

import argparse

import torch
from rich.console import Console

from layerwise.cli.bench.peers import PEERS
from layerwise.cli.bench.shapes import SETS
from layerwise.cli.bench.tensors import of_shapes
from layerwise.cli.info import version_of
from numpy_front import as_rows, show
from rows import RESULTS, append, in_turns, provenance

OPTIMIZERS = ("Lamb", "Lars", "Adafactor")
ROUNDS = {"bert-base": 11, "tiny-1000": 41}
TABLE = "torch_front.csv"


def versions() -> dict[str, str]:
    """Of the peers that other benchmarks do not have."""
    return {name: version_of(name) or "" for name in ("pytorch_optimizer", "timm")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rounds of the small set; nothing is written")
    parser.add_argument("--shapes", choices=ROUNDS, action="append", help="only these sets; may be repeated")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, action="append", help="only these; may be repeated")
    parser.add_argument("--no-write", action="store_true", help=f"do not append to {RESULTS.name}/{TABLE}")
    given = parser.parse_args()
    console, origin = Console(), {**provenance(), **versions()}
    for set_name in given.shapes or (["tiny-1000"] if given.quick else ROUNDS):
        shapes = SETS[set_name]()
        work = of_shapes(shapes, torch.float32, torch.device("cpu"))
        for optimizer in given.optimizer or OPTIMIZERS:
            rounds = 3 if given.quick else ROUNDS[set_name]
            found = in_turns(optimizer, set_name, work, PEERS[optimizer], rounds)
            rows = as_rows(optimizer, set_name, found)
            show(console, rows)
            if not (given.quick or given.no_write):
                append(RESULTS / TABLE, [{**row, **origin} for row in rows])


if __name__ == "__main__":
    main()
