"""Time the step that the host takes of offloaded parameters, beside those that others offload, and say what fits.

What is timed is the step of weights and gradients in host memory: what `offload=True` does once gradients are there.
Copies are not: no accelerator has been there to copy from. All rows run in one process, in turns. `--fit` prints,
without measuring, the memory and the seconds on the bus of models by their numbers of parameters. DeepSpeed is timed
where it can be imported and builds its CPUAdam.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

import layerwise
import layerwise.torch
from harness.shapes import SETS
from rows import RESULTS, alternately, append, figures, parser_of, provenance, show

TABLE = "offload.csv"
OPTIMIZERS = ("Lamb", "AdamW", "Adafactor")
SMALL = {"master_weights": "split24", "state_dtype": "int8"}
GIB = 1 << 30


class Format(NamedTuple):
    """The bytes of a parameter: of weights, which gradients share, and on the host beside them."""

    options: Mapping[str, Any]
    weights: int
    beside: float

    @property
    def host(self) -> float:
        return self.weights + self.beside

    @property
    def bus(self) -> int:
        return 2 * self.weights


CODES = 1 + 4 / 64
FORMATS = {
    ("Lamb", "float32"): Format({}, 4, 8),
    ("Lamb", "split24, 8 bits"): Format(SMALL, 2, 1 + 2 * CODES),
    ("AdamW", "float32"): Format({}, 4, 8),
    ("AdamW", "split24, 8 bits"): Format(SMALL, 2, 1 + 2 * CODES),
    ("Adafactor", "float32"): Format({}, 4, 0),  # but for rows and columns
    ("Adafactor", "split24"): Format({"master_weights": "split24"}, 2, 1),
}
MODELS = {"1 B": 1e9, "8 B": 8e9, "70 B": 70e9}
RANKS = (1, 8)
WEIGHTS = {"float32": 4, "bfloat16": 2}  # bytes
BUS = 25e9  # bytes a second


def main() -> None:
    parser = parser_of(__doc__, TABLE)
    parser.add_argument("--fit", action="store_true", help="print what fits, and measure nothing")
    parser.add_argument("--shapes", default="bert-base", choices=SETS)
    parser.add_argument("--rounds", type=int, default=11)
    given = parser.parse_args()
    if given.fit:
        print("\n".join(fits()))
        return
    for optimizer in OPTIMIZERS:
        rows = list(timed_rows(optimizer, given.shapes, given.rounds))
        show(f"{optimizer}; load {os.getloadavg()[0]:.1f}", rows)
        if not given.no_write:
            append(RESULTS / TABLE, [{**row, **provenance(), "torch": torch.__version__} for row in rows])


def timed_rows(optimizer: str, shapes: str, rounds: int) -> Iterator[dict[str, Any]]:
    torch.manual_seed(0)
    host: dict[str, tuple[float, int]] = {}
    steps: dict[str, Callable[[], object]] = {}
    for name, make, dtype in implementations(optimizer):
        params = parameters(shapes, dtype)
        try:
            opts = make(params)
        except Exception as problem:  # whatever a build raises
            print(f"left out: {name}: {type(problem).__name__}")
            continue
        steps[name] = lambda opts=opts: [opt.step() for opt in opts]
        steps[name]()
        size = sum(p.numel() for p in params)
        host[name] = (sum(map(_bytes, params)) + sum(map(_state_bytes, opts))) / size, 2 * dtype.itemsize
    found, threads = alternately(steps, rounds), torch.get_num_threads()
    for name, timing in found.items():
        yield {
            "optimizer": optimizer,
            "shapes": shapes,
            "implementation": name,
            "threads": threads,
            **figures(timing, found[DEEPSPEED if DEEPSPEED in found else FUSED]),
            "million_a_second_and_core": round(size / timing.median / threads / 1e6, 1),
            "host_bytes": round(host[name][0], 3),
            "bus_bytes": host[name][1],
        }


FUSED = "torch.optim.AdamW, fused"
DEEPSPEED = "DeepSpeed, CPUAdam"
Made = tuple[str, Callable[[list[torch.Tensor]], list[Any]], torch.dtype]


def implementations(optimizer: str) -> Iterator[Made]:
    front = getattr(layerwise.torch, optimizer)
    for (own, name), form in FORMATS.items():
        if own == optimizer:
            options, dtype = {"lr": 1e-3, **form.options}, torch.float32 if form.weights == 4 else torch.bfloat16
            yield name, lambda params, options=options: [front(params, **options)], dtype
    yield FUSED, lambda params: [torch.optim.AdamW(params, fused=True)], torch.float32
    yield "torchao's default, AdamW for each tensor", _each, torch.float32
    yield DEEPSPEED, _deepspeed, torch.float32


def _each(params: list[torch.Tensor]) -> list[Any]:
    return [torch.optim.AdamW([p], fused=True) for p in params]


def _deepspeed(params: list[torch.Tensor]) -> list[Any]:
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return [DeepSpeedCPUAdam(params, adamw_mode=True)]


def parameters(shapes: str, dtype: torch.dtype) -> list[torch.Tensor]:
    made = [torch.nn.Parameter(torch.randn(shape).mul_(0.02).to(dtype)) for shape in SETS[shapes]().values()]
    for p in made:
        p.grad = torch.randn(p.shape).mul_(0.01).to(dtype)
    return made


def _bytes(x: torch.Tensor) -> int:
    return x.numel() * x.element_size()


def _state_bytes(opt: Any) -> int:
    return sum(_bytes(x) for state in opt.state.values() for x in state.values() if isinstance(x, torch.Tensor))


def fits() -> Iterator[str]:
    """The rows of the table on the page; AdamW is as LAMB."""
    yield "| parameters | ranks | weights | device, GiB | host, LAMB | host, Adafactor | bus, s |"
    yield "|---|---|---|---|---|---|---|"
    for model, n in MODELS.items():
        for ranks in RANKS:
            for dtype, weights in WEIGHTS.items():
                forms = {name: form for (name, _), form in FORMATS.items() if form.weights == weights}
                own, form = n / ranks, forms["Lamb"]
                sizes = (2 * weights, form.host, forms["Adafactor"].host)
                gib = " | ".join(f"{own * size / GIB:.1f}" for size in sizes)
                yield f"| {model} | {ranks} | {dtype} | {gib} | {own * form.bus / BUS:.2f} |"


if __name__ == "__main__":
    layerwise.set_num_threads(torch.get_num_threads())
    main()
