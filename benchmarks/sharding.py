"""Time `step` on models that FSDP2 shards over processes, and count what a step sends.

Every process has one thread, and they talk by Gloo over loopback: what is measured is what a step costs the host, and
how that grows with the number of tensors, which are small. All implementations run in turns, each on a model of its
own, and all processes begin a step together. A ratio is a median over torch.optim.AdamW's, which sends nothing. timm
is measured where it is installed; those that cannot step sharded tensors are named with what they raise.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

import layerwise.torch
from fronts import versions
from harness.peers import LR, load
from harness.timing import Step, Timing
from rows import RESULTS, alternately, append, parser_of, provenance, show

RANKS = (2, 4)
TENSORS = (50, 100, 200, 400)
ROUNDS = 41
TABLE = "sharding.csv"
YARDSTICK = "torch.optim.AdamW, fused"
SENDING = ("c10d", "_c10d_functional", "_dtensor")
NOT_SENDING = ("wait_tensor", "_wrap_tensor_autograd")
Row = dict[str, Any]


class Sent(TorchDispatchMode):
    """Counts collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # what it does comes by again
        self.number += func.namespace in SENDING and func.overloadpacket.__name__ not in NOT_SENDING
        return func(*args, **(kwargs or {}))


def sharded(tensors: int) -> list[Any]:
    """Named parameters, matrices and vectors in turns, with gradients."""
    torch.manual_seed(0)
    model = nn.Module()
    for i in range(tensors):
        model.register_parameter(f"t{i}", nn.Parameter(torch.randn((96, 64) if i % 2 == 0 else 96)))
    fully_shard(model)
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e-3)
    return list(model.named_parameters())


def contestants() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Each as a function of named parameters. With decay, because some leave out the ratio without it."""
    for name in ("Lamb", "Lars", "Adafactor"):
        cls = getattr(layerwise.torch, name)
        yield f"layerwise.torch.{name}", lambda named, cls=cls: cls(named, lr=LR, weight_decay=0.01)
        yield (
            f"layerwise.torch.{name}, by the rule",
            lambda named, cls=cls: cls(named, lr=LR, weight_decay=0.01, fused=False),
        )
    if find_spec("timm") is not None:
        timm = load("timm.optim.lamb:Lamb")
        options = {"lr": LR, "weight_decay": 0.01, "max_grad_norm": None}
        yield "timm.Lamb", lambda named: timm([p for _, p in named], **options)
    yield YARDSTICK, lambda named: torch.optim.AdamW(named, LR, fused=True)


def ready(make: Callable[[Any], Any], tensors: int) -> tuple[Step, int] | str:
    """A step and how many collectives it takes, or what it raises."""
    try:
        step = make(sharded(tensors)).step
        step()  # the first makes the state
        with Sent() as sent:
            step()
    except Exception as problem:
        return f"{type(problem).__name__}: {str(problem).strip().splitlines()[0]}"
    return step, sent.number


def measure(tensors: int, rounds: int) -> list[Row]:
    """One row for each implementation, as this process sees it."""
    made = {name: ready(make, tensors) for name, make in contestants()}
    steps = {name: found[0] for name, found in made.items() if not isinstance(found, str)}
    timings = alternately(steps, rounds, together=dist.barrier)
    rows = []
    for name, found in made.items():
        row: Row = {"ranks": dist.get_world_size(), "tensors": tensors, "implementation": name}
        rows.append(row | ({"raises": found} if isinstance(found, str) else numbers(found[1], timings, name)))
    return rows


def numbers(sent: int, timings: dict[str, Timing], name: str) -> Row:
    timing, yardstick = timings[name], timings[YARDSTICK]
    low, high = timing.quartiles
    return {
        "collectives": sent,
        "rounds": len(timing.rounds),
        "median_ms": round(1e3 * timing.median, 4),
        "q1_ms": round(1e3 * low, 4),
        "q3_ms": round(1e3 * high, 4),
        "ratio": round(timing.median / yardstick.median, 3),
        "raises": "",
    }


def on_rank(rank: int, world: int, folder: str, parts: Sequence[Callable[[], list[Row]]]) -> None:
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    for number, part in enumerate(parts):
        rows = part()
        if rank == 0:
            torch.save(rows, Path(folder, str(number)))
    if world > 1:
        dist.destroy_process_group()


def measured(world: int, parts: Sequence[Callable[[], list[Row]]]) -> Iterator[list[Row]]:
    """The rows of each part, as the first of so many processes has them."""
    os.environ |= {"OMP_NUM_THREADS": "1", "LAYERWISE_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(on_rank, (world, folder, parts), world)
        for number in range(len(parts)):
            yield torch.load(Path(folder, str(number)))


def show_stepped(rows: list[Row]) -> None:
    stepped, raising = ([row for row in rows if bool(row["raises"]) is raises] for raises in (False, True))
    title = f"{rows[0]['tensors']} tensors, sharded over {rows[0]['ranks']} processes"
    show(title, stepped, ("implementation", "median_ms", "q1_ms", "q3_ms", "ratio", "collectives"))
    for row in raising:
        print(f"{row['implementation']} raises {row['raises']}")


def main() -> None:
    parser = parser_of(__doc__, TABLE)
    parser.add_argument("--quick", action="store_true", help="a few rounds of the smallest; nothing is written")
    parser.add_argument("--ranks", type=int, choices=RANKS, action="append", help="only so many; may be repeated")
    parser.add_argument("--tensors", type=int, choices=TENSORS, action="append", help="only so many; may be repeated")
    given = parser.parse_args()
    origin = {**provenance(), **versions()}
    sizes = tuple(given.tensors or (TENSORS[:1] if given.quick else TENSORS))
    for world in given.ranks or (RANKS[:1] if given.quick else RANKS):
        for rows in measured(world, [partial(measure, n, 3 if given.quick else ROUNDS) for n in sizes]):
            show_stepped(rows)
            if not (given.quick or given.no_write):
                columns = next(row for row in rows if not row["raises"])
                append(RESULTS / TABLE, [{key: row.get(key, "") for key in columns} | origin for row in rows])


if __name__ == "__main__":
    main()
