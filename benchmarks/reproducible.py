"""Time what `reproducible=True` costs: steps of one process and one thread, in turns, by the processor's own time.

Three optimizers step one matrix that no cache holds, and many small ones: as usual by the compiled engine, by the rule
engine, and reproducibly. A ratio is that of the medians, to the usual step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

import layerwise
import layerwise.torch
from rows import RESULTS, append, parser_of, provenance, show

TABLE = "reproducible.csv"
SHAPES = {"one of 4096×4096": [(4096, 4096)], "200 of 64×64": [(64, 64)] * 200}
OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {"Lamb": {}, "Lars": {"momentum": 0.9}, "Adafactor": {}}
STEPS: Mapping[str, Mapping[str, Any]] = {
    "usual": {},
    "by the rule": {"fused": False},
    "reproducible": {"reproducible": True},
}


def made(optimizer: str, shapes: list[tuple[int, ...]], options: Mapping[str, Any]) -> Any:
    """An optimizer that has taken two steps."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape).mul_(0.02)) for shape in shapes]
    for p in params:
        p.grad = torch.randn(p.shape).mul_(1e-3)
    opt = getattr(layerwise.torch, optimizer)(params, lr=1e-3, **OPTIMIZERS[optimizer], **options)
    for _ in range(2):
        opt.step()
    return opt


def timed(optimizer: str, shapes: list[tuple[int, ...]], rounds: int) -> dict[str, list[float]]:
    """The processor's milliseconds of each step."""
    opts = {name: made(optimizer, shapes, options) for name, options in STEPS.items()}
    found: dict[str, list[float]] = {name: [] for name in opts}
    for _ in range(rounds):
        for name, opt in opts.items():
            start = time.process_time()
            opt.step()
            found[name].append(1e3 * (time.process_time() - start))
    return found


def rows_of(optimizer: str, shapes: str, rounds: int) -> Iterator[dict[str, Any]]:
    found = timed(optimizer, SHAPES[shapes], rounds)
    usual = statistics.median(found["usual"])
    for name, times in found.items():
        low, middle, high = statistics.quantiles(times, n=4)
        numbers = {"median_ms": f"{middle:.2f}", "q1_ms": f"{low:.2f}", "q3_ms": f"{high:.2f}"}
        row = {"optimizer": optimizer, "shapes": shapes, "threads": 1, "step": name, "rounds": rounds, **numbers}
        yield {**row, "ratio": f"{middle / usual:.2f}"}


def main() -> None:
    parser = parser_of(__doc__, TABLE)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    layerwise.set_num_threads(1)
    torch.set_num_threads(1)
    rows, origin = [], provenance()
    for shapes in SHAPES:
        found = [row for optimizer in OPTIMIZERS for row in rows_of(optimizer, shapes, given.rounds)]
        show(shapes, found, ("optimizer", "step", "median_ms", "q1_ms", "q3_ms", "ratio"))
        rows += [{**row, **origin} for row in found]
    if not given.no_write:
        append(RESULTS / TABLE, rows)


if __name__ == "__main__":
    main()
