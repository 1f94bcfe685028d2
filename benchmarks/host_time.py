"""Time a step of many small tensors on the host: in one group, in a group each, and their first step.

LAMB steps tensors of 64 elements, in turns, by the processor's own time and one thread. With a schedule, every group's
lr is another number at each step. A ratio is that of the medians, to one group.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import quantiles
from typing import Any

import torch

import layerwise
from harness.timing import Step
from layerwise.torch import Lamb
from rows import RESULTS, alternately, append, figures, parser_of, provenance, show

TABLE = "host_time.csv"
STEADY, FIRST = (200, 1000), (1000, 8000)


def of_processor(step: Step) -> tuple[float, float]:
    """The processor's time, which leaves out what else the machine does."""
    start = time.process_time()
    step()
    seconds = time.process_time() - start
    return seconds, seconds


def made(tensors: int, own_groups: bool = False) -> Lamb:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(8, 8)) for _ in range(tensors)]
    for p in params:
        p.grad = torch.randn(8, 8)
    layers = [{"params": [p], "lr": 1e-3 * (1 + i / tensors)} for i, p in enumerate(params)]
    return Lamb(layers if own_groups else params, lr=1e-3, weight_decay=0.01)


def scheduled(tensors: int) -> Step:
    opt = made(tensors, own_groups=True)

    def step() -> None:
        for group in opt.param_groups:
            group["lr"] *= 0.999
        opt.step()

    return step


def steady(tensors: int, rounds: int) -> Iterator[dict[str, Any]]:
    steps = {
        "one group": made(tensors).step,
        "a group each": made(tensors, own_groups=True).step,
        "a group each, scheduled": scheduled(tensors),
    }
    found = alternately(steps, rounds, clock=of_processor)
    for name, timing in found.items():
        numbers = figures(timing, found["one group"])
        del numbers["min_ms"]
        yield {"tensors": tensors, "step": name, **numbers}


def first(tensors: int, rounds: int) -> dict[str, Any]:
    """The first step, in milliseconds for each tensor."""
    low, median, high = quantiles([1e3 * of_processor(made(tensors).step)[0] / tensors for _ in range(rounds)], n=4)
    numbers = {"median_ms": median, "q1_ms": low, "q3_ms": high}
    return {
        "tensors": tensors,
        "step": "first, each tensor",
        "rounds": rounds,
        **{name: round(number, 4) for name, number in numbers.items()},
        "ratio": "",
    }


def main() -> None:
    parser = parser_of(__doc__, TABLE)
    parser.add_argument("--rounds", type=int, default=41)
    given = parser.parse_args()
    layerwise.set_num_threads(1)
    torch.set_num_threads(1)
    found = [row for tensors in STEADY for row in steady(tensors, given.rounds)]
    found += [first(tensors, 5) for tensors in FIRST]
    show("LAMB, tensors of 64 elements", found)
    if not given.no_write:
        append(RESULTS / TABLE, [{**row, **provenance()} for row in found])


if __name__ == "__main__":
    main()
