"""Time the compiled engine against the peers that its speed was promised by, and against the memory of the machine.

Four tables: whole optimizers, each in turns with ours, on the same weights and gradients; one tensor of growing size;
one thread against several; bytes a second against copying. `engine` is the engine alone, given jobs; the other rows
include their Python.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any
from unittest import mock

import torch

import layerwise
import layerwise.torch
from fronts import versions
from harness.peers import PEERS
from harness.shapes import SETS, Shapes, parameters
from harness.tensors import GRADIENT, WEIGHT, Tensors
from harness.timing import Step
from layerwise import _native
from layerwise.rules.requests import Now
from layerwise.torch.step import _engines
from rows import RESULTS, alternately, append, figures, parser_of, provenance, show

TABLE = "cpu_engine.csv"
SHOWN = (
    "optimizer", "shapes", "threads", "implementation", "median_ms", "q1_ms", "q3_ms", "ratio", "share_of_copy"
)  # fmt: skip
Names = Sequence[str]
Frozen = tuple[tuple[str, tuple[int, ...]], ...]
OPTIMIZERS = ("Lamb", "Lars", "Adafactor")
COMPILED = {"Lamb": "Lamb", "Lars": "LARS", "Adafactor": "AdaFactor"}  # of pytorch_optimizer
MOST_COMPILED = 1000  # tensors; the step of so many takes more than ten minutes to compile
OPTIONS = {"lr": 1e-3, "weight_decay": 0.01}
BYTES = {"Lamb": 40, "Lars": 28, "Adafactor": 24}  # that each parameter moves if nothing is found in the cache
COPIED = 64 << 20  # elements: larger than caches are
SIZES = [1 << k for k in range(10, 27, 2)]
ROUNDS = {"bert-base": 11, "tiny-1000": 41}


def main() -> None:
    parser = parser_of(__doc__, TABLE)
    parser.add_argument("--quick", action="store_true", help="a few rounds of the small set; nothing is written")
    parser.add_argument(
        "--only", choices=("table", "scale", "sweep", "threads", "copy"), action="append", help="may be repeated"
    )
    parser.add_argument("--optimizer", choices=OPTIMIZERS, action="append", help="only this; may be repeated")
    parser.add_argument("--threads", type=int, default=min(2, layerwise.get_num_threads()))
    given = parser.parse_args()
    use_threads(given.threads)
    origin = {**provenance(), **versions(), "isa": _native.instruction_set()}
    tables = {"table": table, "scale": scale, "sweep": sweep, "threads": threads, "copy": copied}
    for name in ["table"] if given.quick else given.only or ["table", "sweep", "threads", "copy"]:
        rows = list(tables[name](given.quick, given.threads, given.optimizer or OPTIMIZERS))
        show(f"{name}; load {os.getloadavg()[0]:.1f}", rows, SHOWN)
        if not (given.quick or given.no_write):
            append(RESULTS / TABLE, [{"table": name, **row, **origin} for row in rows])


def use_threads(n: int) -> None:
    layerwise.set_num_threads(n)
    torch.set_num_threads(n)


# ---- what is timed


@cache
def numbers(shapes: Frozen) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Weights and gradients, which all share that are timed on these shapes: they need not fit in memory many times."""
    random = torch.Generator().manual_seed(0)
    weights, grads = ([x * torch.randn(shape, generator=random) for _, shape in shapes] for x in (WEIGHT, GRADIENT))
    return weights, grads


def tensors(shapes: Shapes, dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    weights, grads = numbers(tuple(shapes.items()))
    found = [torch.nn.Parameter(x.to(dtype)) for x in weights]
    for p, g in zip(found, grads, strict=True):
        p.grad = g.to(dtype)
    return found


def front(name: str, shapes: Shapes, dtype: torch.dtype = torch.float32) -> Step:
    step: Step = getattr(layerwise.torch, name)(tensors(shapes, dtype), **OPTIONS, fused=True).step
    return step


def engine(name: str, shapes: Shapes, dtype: torch.dtype = torch.float32) -> Step:
    """The engine alone, with the jobs that the front gives it."""
    compiled: Any = next(row.engine for row in _engines.ENGINES if row.name == "compiled")
    params = tensors(shapes, dtype)
    opt = getattr(layerwise.torch, name)(params, **OPTIONS)
    with mock.patch.object(compiled, "prepare", side_effect=compiled.prepare) as prepare:
        opt.step()
    prepared = compiled.prepare(prepare.call_args.args[0])
    grads, nows = [p.grad for p in params], [Now(2, OPTIONS["lr"], OPTIONS["weight_decay"])] * len(params)
    return lambda: prepared.step(grads, nows)


def fused(cls: Any, shapes: Shapes, **options: Any) -> Step:
    step: Step = cls(tensors(shapes, torch.float32), lr=1e-3, fused=True, **options).step
    return step


def yardstick(name: str, shapes: Shapes) -> tuple[str, Step]:
    if name == "Lars":
        return "torch.optim.SGD, fused", fused(torch.optim.SGD, shapes, momentum=0.9)
    return "torch.optim.Adam, fused", fused(torch.optim.Adam, shapes)


def compiled(name: str, shapes: Shapes) -> Step:
    """pytorch_optimizer's step, which it has torch.compile make of foreach; that compilation is not timed."""
    from pytorch_optimizer import create_optimizer

    model = torch.nn.Module()
    for place, p in enumerate(tensors(shapes, torch.float32)):
        model.register_parameter(f"p{place}", p)
    options: dict[str, Any] = {"scale_parameter": False, "relative_step": False} if name == "Adafactor" else {}
    step: Step = create_optimizer(model, COMPILED[name].lower(), **OPTIONS, **options, compile=True).step
    for _ in range(2):  # the second may compile again
        step()
    return step


# ---- tables


def scale(quick: bool, n: int, names: Names) -> Iterator[dict[str, object]]:
    """The table without the peers that take seconds."""
    yield from table(quick, n, names, peers=False)


def table(quick: bool, n: int, names: Names, peers: bool = True) -> Iterator[dict[str, object]]:
    for set_name in ["tiny-1000"] if quick else ROUNDS:
        shapes = SETS[set_name]()
        for name in names:
            ours = {f"layerwise.torch.{name}": front(name, shapes)}
            for label, step in rivals(name, shapes, peers and not quick):
                steps = {**ours, label: step}
                yield from as_rows(name, set_name, parameters(shapes), n, steps, 3 if quick else ROUNDS[set_name])


def rivals(name: str, shapes: Shapes, peers: bool) -> Iterator[tuple[str, Step]]:
    """One at a time, since each has state of its own."""
    yield yardstick(name, shapes)
    if name == "Lars":
        yield "torch.optim.Adam, fused", fused(torch.optim.Adam, shapes)
    yield "engine", engine(name, shapes)
    yield "layerwise.torch, bfloat16", front(name, shapes, torch.bfloat16)
    if peers:
        work = Tensors(shapes, tensors(shapes))
        others = (peer for peer in PEERS[name] if peer.installed and not peer.gpu)
        skipped = ("layerwise", "torch.optim.SGD", "torch.optim.Adam,")
        yield from ((peer.label, peer.start(work).step) for peer in others if not peer.label.startswith(skipped))
    if peers and len(shapes) < MOST_COMPILED:
        yield f"pytorch_optimizer.{COMPILED[name]}, compiled", compiled(name, shapes)


def sweep(quick: bool, n: int, names: Names) -> Iterator[dict[str, object]]:
    for size in SIZES:
        shapes: Shapes = {"one": (size // 256, 256)}
        for name in names:
            label, step = yardstick(name, shapes)
            steps = {"engine": engine(name, shapes), label: step}
            yield from as_rows(name, f"one of {size}", size, n, steps, 9 if size > 1 << 22 else 41)


def threads(quick: bool, n: int, names: Names) -> Iterator[dict[str, object]]:
    shapes = SETS["bert-base"]()
    for name in names:
        for count in sorted({1, n}):
            use_threads(count)
            label, step = yardstick(name, shapes)
            steps = {"engine": engine(name, shapes), label: step}
            yield from as_rows(name, "bert-base", parameters(shapes), count, steps, 7)
    use_threads(n)


def copied(quick: bool, n: int, names: Names) -> Iterator[dict[str, object]]:
    """The share of a copy's bytes a second that a step moves, of a tensor that no cache holds.

    Of the faster of two: a copy elsewhere also reads what it writes over, and one in place does not.
    """
    to, source = torch.zeros(COPIED), torch.randn(COPIED)
    shapes: Shapes = {"one": (COPIED // 1024, 1024)}
    copies = {"copy": lambda: to.copy_(source), "copy in place": lambda: to.mul_(1.0)}
    for name in names:
        rows = list(as_rows(name, "one of 64M", COPIED, n, {"engine": engine(name, shapes), **copies}, 9))
        step, *bare = (float(str(row["median_ms"])) for row in rows)
        rows[0]["share_of_copy"] = round(BYTES[name] / step / (8 / min(bare)), 3)
        yield from rows


def as_rows(
    name: str, shapes: str, size: int, n: int, steps: dict[str, Callable[[], Any]], rounds: int
) -> Iterator[dict[str, object]]:
    found = alternately(steps, rounds)
    common = {"optimizer": name, "shapes": shapes, "parameters": size, "threads": n}
    ours = next(iter(found.values()))
    for label, timing in found.items():
        yield {**common, "implementation": label, **figures(timing, ours), "share_of_copy": ""}


if __name__ == "__main__":
    main()
