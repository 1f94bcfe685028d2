"""Time what `reproducible=True` costs: steps of one process and one thread, in turns, by the processor's own time.

Three optimizers step one matrix that no cache holds, and many small ones: as usual by the compiled engine, by the rule
engine, and reproducibly. A ratio is that of the medians, to the usual step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

import layerwise
import layerwise.torch
from layerwise.cli.bench.timing import Step
from rows import RESULTS, alternately, append, figures, parser_of, provenance, show

TABLE = "reproducible.csv"
SHAPES = {"one of 4096×4096": [(4096, 4096)], "200 of 64×64": [(64, 64)] * 200}
OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {"Lamb": {}, "Lars": {"momentum": 0.9}, "Adafactor": {}}
STEPS: Mapping[str, Mapping[str, Any]] = {
    "usual": {},
    "by the rule": {"fused": False},
    "reproducible": {"reproducible": True},
}


def step_of(optimizer: str, shapes: list[tuple[int, ...]], options: Mapping[str, Any]) -> Step:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape).mul_(0.02)) for shape in shapes]
    for p in params:
        p.grad = torch.randn(p.shape).mul_(1e-3)
    step: Step = getattr(layerwise.torch, optimizer)(params, lr=1e-3, **OPTIMIZERS[optimizer], **options).step
    return step


def rows_of(optimizer: str, shapes: str, rounds: int) -> Iterator[dict[str, Any]]:
    steps = {name: step_of(optimizer, SHAPES[shapes], options) for name, options in STEPS.items()}
    found = alternately(steps, rounds, clock=of_processor)
    for name, timing in found.items():
        common = {"optimizer": optimizer, "shapes": shapes, "threads": 1, "step": name}
        numbers = figures(timing, found["usual"])
        del numbers["min_ms"]
        yield {**common, **numbers}


def of_processor(step: Step) -> tuple[float, float]:
    """The processor's time, which leaves out what else the machine does."""
    start = time.process_time()
    step()
    seconds = time.process_time() - start
    return seconds, seconds


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
