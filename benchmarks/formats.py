"""Time the step in every storage format, beside plain weights and PyTorch's fused Adam, in turns.

Shapes of BERT-base, weights and gradients of bfloat16, and Adam in float32, all with the same number of threads. All
rows run in one process, one after the other in every round; a ratio is the median over the rounds of its time over
Adam's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import torch

import layerwise
import layerwise.torch
from harness.shapes import SETS
from harness.timing import Timing
from rows import RESULTS, alternately, append, figures, parser_of, provenance, show

TABLE = "formats.csv"
YARDSTICK = "torch.optim.Adam, fused, float32"
TORCHAO = "torchao.AdamW8bit"  # where it is installed
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "Lamb": {"lr": 1e-3},
    "Lars": {"lr": 0.1, "momentum": 0.9},
    "Adafactor": {"lr": 1e-3, "beta1": 0.9},
}
FORMATS: Mapping[str, Mapping[str, Any]] = {
    "nearest": {},
    "stochastic": {"rounding": "stochastic"},
    "float32 masters": {"master_weights": True},
    "split": {"master_weights": "split"},
    "24 bits": {"master_weights": "split24"},
    "bfloat16 state": {"state_dtype": "bfloat16"},
    "8-bit state": {"state_dtype": "int8"},
    "24 bits, 8-bit state": {"master_weights": "split24", "state_dtype": "int8"},
}


def parameters(set_name: str, dtype: torch.dtype) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.randn(shape).mul_(0.02).to(dtype)) for shape in SETS[set_name]().values()]
    for p in made:
        p.grad = torch.randn(p.shape).mul_(0.01).to(dtype)
    return made


def timed(optimizer: str, set_name: str, rounds: int) -> dict[str, Timing]:
    """Return the times of all formats of an optimizer, by name."""
    torch.manual_seed(0)
    steps: dict[str, Any] = {YARDSTICK: torch.optim.Adam(parameters(set_name, torch.float32), lr=1e-4, fused=True).step}
    for name, options in FORMATS.items():
        params = parameters(set_name, torch.bfloat16)
        steps[name] = getattr(layerwise.torch, optimizer)(params, **OPTIONS[optimizer], **options).step
    if optimizer == "Lamb" and find_spec("torchao"):
        from torchao.optim import AdamW8bit

        params = parameters(set_name, torch.bfloat16)
        steps[TORCHAO] = AdamW8bit(params, lr=1e-4, bf16_stochastic_round=True).step
    return alternately(steps, rounds)


def timed_rows(optimizer: str, set_name: str, rounds: int) -> Iterator[dict[str, Any]]:
    found = timed(optimizer, set_name, rounds)
    common = {"optimizer": optimizer, "shapes": set_name, "threads": torch.get_num_threads()}
    for name, one in found.items():
        row = {**common, "format": name, **figures(one, found[YARDSTICK])}
        del row["min_ms"]
        yield {**row, "ratio": f"{one.over(found[YARDSTICK]).median:.3f}"}


def main() -> None:
    parser = parser_of(__doc__, TABLE)
    parser.add_argument("--optimizer", choices=OPTIONS, action="append", help="only these; may be repeated")
    parser.add_argument("--shapes", default="bert-base", choices=SETS, help="the set of shapes")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=layerwise.get_num_threads(), help="of both, ours and PyTorch's")
    given = parser.parse_args()
    layerwise.set_num_threads(given.threads)
    torch.set_num_threads(given.threads)
    rows, origin = [], provenance()
    for optimizer in given.optimizer or OPTIONS:
        found = list(timed_rows(optimizer, given.shapes, given.rounds))
        show(f"{optimizer}; ratio: to Adam", found, ("format", "median_ms", "q1_ms", "q3_ms", "ratio"))
        rows += [{**row, **origin} for row in found]
    if not given.no_write:
        append(RESULTS / TABLE, rows)


if __name__ == "__main__":
    main()
