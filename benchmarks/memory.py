"""Count the bytes of weights, gradients and state, and measure the peak memory of a whole training step.

Bytes are those of the tensors themselves, on the shapes of BERT-base; with gradients released, the largest gradient is
counted, which is there alone. The peak is that of a process of its own, which trains a transformer of 109 million
parameters for three steps: its largest resident memory, as the system reports it to the process that started it, less
that of a process which imports the same and builds nothing. torchao's AdamW8bit is measured where it is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

from rows import RESULTS, append, parser_of, provenance, show

TABLE = "memory.csv"
MIB = 2**20
SMALL = {"master_weights": "split24", "state_dtype": "int8"}
DRAWN = {"rounding": "stochastic"}
BESIDE_WEIGHTS = ("remainder", "master")


class Kind(NamedTuple):
    """A row: an optimizer, its options, the dtype of the weights, and whether gradients are released."""

    label: str
    optimizer: str
    options: Mapping[str, Any]
    low: bool = True
    released: bool = False


KINDS = (
    Kind("AdamW of torch, float32", "torch.AdamW", {}, low=False),
    Kind("AdamW8bit of torchao, bfloat16", "torchao.AdamW8bit", {}),
    Kind("LAMB, float32", "Lamb", {}, low=False),
    Kind("LAMB, bfloat16 and float32 masters", "Lamb", {"master_weights": True}),
    Kind("LAMB, float32 split, 8-bit state", "Lamb", {**SMALL, "master_weights": "split"}),
    Kind("LAMB, 24 bits, 8-bit state", "Lamb", SMALL),
    Kind("LAMB, 24 bits, 8-bit state, released", "Lamb", SMALL, released=True),
    Kind("LARS, 24 bits, 8-bit state, released", "Lars", SMALL, released=True),
    Kind(
        "Adafactor with momentum, 24 bits, 8-bit state, released", "Adafactor", {**SMALL, "beta1": 0.9}, released=True
    ),
    Kind("Adafactor, bfloat16 rounded at random, released", "Adafactor", DRAWN, released=True),
)


def made(kind: Kind, params: Any) -> Any:
    """Return the optimizer of a row."""
    if kind.optimizer == "torch.AdamW":
        from torch.optim import AdamW

        return AdamW([p for _, p in params], lr=1e-3, fused=True)
    if kind.optimizer == "torchao.AdamW8bit":
        from torchao.optim import AdamW8bit

        return AdamW8bit([p for _, p in params], lr=1e-3)
    import layerwise.torch

    optimizer = getattr(layerwise.torch, kind.optimizer)(params, lr=1e-3, **kind.options)
    if kind.released:
        layerwise.torch.step_in_backward(optimizer)
    return optimizer


def is_there(kind: Kind) -> bool:
    package = kind.optimizer.partition(".")[0]
    return package != "torchao" or find_spec(package) is not None


def parameters(kind: Kind) -> list[tuple[str, Any]]:
    import torch

    from harness.shapes import SETS

    dtype = torch.bfloat16 if kind.low else torch.float32
    shapes = SETS["bert-base"]().values()
    return [(f"p{i}", torch.nn.Parameter(torch.full(shape, 0.01, dtype=dtype))) for i, shape in enumerate(shapes)]


def counted(kind: Kind) -> dict[str, float]:
    """Return bytes a parameter of weights, gradients and state, after a step."""
    params = parameters(kind)
    optimizer = made(kind, params)
    for _, p in params:
        (p.float() ** 2).sum().backward()
    optimizer.step()
    n = sum(p.numel() for _, p in params)
    weights = sum(p.nbytes for _, p in params)
    state = 0
    for values in optimizer.state.values():
        for key, x in values.items():
            size = sum(map(_bytes, _parts(x)))
            weights, state = (weights + size, state) if key in BESIDE_WEIGHTS else (weights, state + size)
    each = [p.nbytes for _, p in params]
    return {"weights": weights / n, "gradients": (max(each) if kind.released else sum(each)) / n, "state": state / n}


def _parts(x: Any) -> Iterator[Any]:
    """Yield the tensors that a part of a state is made of."""
    inner = getattr(x, "__tensor_flatten__", None)
    if inner is None:
        yield x
    else:
        yield from (getattr(x, name) for name in inner()[0])


def _bytes(x: Any) -> int:
    return int(getattr(x, "nbytes", 0))


# ---- peaks, in processes of their own


def train(kind: Kind, steps: int = 3) -> None:
    """Train the transformer for some steps."""
    import torch

    from backward_memory import Transformer

    torch.manual_seed(0)
    model = Transformer(width=768, depth=12, words=15360)
    model = model.to(torch.bfloat16) if kind.low else model
    optimizer = made(kind, list(model.named_parameters()))
    text = torch.randint(15360, (1, 65))
    for _ in range(steps):
        model(text).backward()
        optimizer.step()
        optimizer.zero_grad()


def import_alone() -> None:
    """Do what every row does before it trains."""
    import layerwise.torch  # noqa: F401


def peak(*arguments: str) -> int:
    """Return the largest resident memory of this script with some arguments, as the system reports it."""
    process = subprocess.Popen([sys.executable, __file__, *arguments])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}")
    return usage.ru_maxrss << (0 if sys.platform == "darwin" else 10)


def rows_of(kinds: Mapping[int, Kind], peaks: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows; peaks first, because a process that is started counts what the one that starts it holds."""
    empty = peak("--train", "-1") if peaks else 0
    found = {number: peak("--train", str(number)) - empty for number in kinds} if peaks else {}
    for number, kind in kinds.items():
        bytes_ = counted(kind)
        row = {"row": kind.label, **{key: f"{x:.3f}" for key, x in bytes_.items()}}
        row["kept"] = f"{bytes_['weights'] + bytes_['state']:.3f}"
        yield {**row, "peak_mib": f"{found[number] / MIB:.0f}" if peaks else ""}


def main() -> None:
    parser = parser_of(__doc__, TABLE)
    parser.add_argument("--no-peak", action="store_true", help="count bytes alone, which takes seconds")
    parser.add_argument("--train", type=int, metavar="ROW", help="train as this row does; -1 imports and ends")
    given = parser.parse_args()
    if given.train is not None:
        train(KINDS[given.train]) if given.train >= 0 else import_alone()
        return
    there = {number: kind for number, kind in enumerate(KINDS) if is_there(kind)}
    rows = list(rows_of(there, not given.no_peak))
    show("bytes a parameter", rows)
    if not given.no_write:
        append(RESULTS / TABLE, [{**row, **provenance()} for row in rows])


if __name__ == "__main__":
    main()
