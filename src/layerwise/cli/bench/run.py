"""The benchmark from beginning to end."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

import layerwise
from layerwise.cli import Mistake
from layerwise.cli.bench import report
from layerwise.cli.bench.measure import Measurement, Table
from layerwise.cli.bench.memory import available
from layerwise.cli.bench.model import model_of
from layerwise.cli.bench.origin import origin
from layerwise.cli.bench.peers import OURS, PEERS, Peer
from layerwise.cli.bench.screen import Screen
from layerwise.cli.bench.shapes import SETS, parameters
from layerwise.cli.bench.work import Work, of_model, of_shapes
from layerwise.cli.files import write_text

SPARE = 0.9  # of the free memory; the rest is for what else goes on
VERSIONS = ("layerwise", "torch", "pytorch_optimizer", "timm", "transformers", "apex", "deepspeed", "bitsandbytes")


@dataclass(frozen=True)
class Request:
    shapes: Sequence[str]
    model: str | None
    optimizers: Sequence[str]
    peers: bool
    against: str
    dtype: str | None
    device: str
    threads: int
    rounds: int
    memory: float | None  # GiB
    csv: Path | None
    json: Path | None


def run_bench(console: Console, request: Request) -> None:
    """Measure, show each table as soon as it is there, and write down if asked to. Ctrl-C shows what there is."""
    device = _device(request.device)
    layerwise.set_num_threads(request.threads)
    torch.set_num_threads(request.threads)
    where, tables = origin(VERSIONS), list[Table]()
    try:
        with Screen(console) as screen:
            for measurement in _measurements(request, device, screen):
                tables.append(measurement.table)
                _fill(console, measurement, request.rounds)
    except KeyboardInterrupt:
        console.print(Text("Interrupted: above is what was measured until then. No file is written.", style="yellow"))
        raise
    finally:
        if any(table.rows for table in tables):
            for line in report.legend(tables, where):
                console.print(Text(line, style="dim"), soft_wrap=not console.is_terminal)
    _write(console, request, tables, where)


def _fill(console: Console, measurement: Measurement, rounds: int) -> None:
    try:
        measurement.run(rounds)
    finally:
        report.show(console, measurement.table)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except Exception as problem:
        said = str(problem).strip().partition("\n")[0]
        raise Mistake(f"--device {name!r} is not to be had: {said}. 'layerwise info --devices' lists them.") from None
    if device.type not in ("cpu", "cuda"):
        raise Mistake(f"--device must be cpu or cuda, but is {name!r}: on others nothing is measured yet.")
    return device


def _works(request: Request, device: torch.device) -> Iterator[tuple[str, Work]]:
    """The sets of tensors, one at a time."""
    if request.model is not None:
        dtype = None if request.dtype is None else getattr(torch, request.dtype)
        yield request.model, of_model(model_of(request.model), dtype, device)
        return
    dtype = getattr(torch, request.dtype or "float32")
    for name in request.shapes:
        _check_room(request, name, 2 * dtype.itemsize * parameters(SETS[name]()), device)
    for name in request.shapes:
        yield name, of_shapes(SETS[name](), dtype, device)


def _check_room(request: Request, name: str, need: int, device: torch.device) -> None:
    room = _room(request, device, 0)
    if need > room:
        raise Mistake(
            f"{name} does not fit: weights and gradients are {need / 2**30:.1f} GiB, and {room / 2**30:.1f} GiB may be "
            "taken. Take a smaller set, or --dtype bfloat16."
        )


def _room(request: Request, device: torch.device, taken: int) -> float:
    """Bytes that may be taken on top of what is taken already."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available()
    return min(SPARE * free, inf if request.memory is None else request.memory * 2**30 - taken)


def _measurements(request: Request, device: torch.device, screen: Screen) -> Iterator[Measurement]:
    for name, work in _works(request, device):
        for optimizer in request.optimizers:
            table, peers = _table(request, optimizer, name, work)
            yield Measurement(table, peers, work, _room(request, device, work.bytes), screen)
        del work
        gc.collect()


def _table(request: Request, optimizer: str, name: str, work: Work) -> tuple[Table, list[Peer]]:
    """An empty table, and who is to be measured."""
    peers = _peers(request, optimizer)
    dtype = " and ".join(sorted({str(p.dtype).removeprefix("torch.") for p in work.params}))
    device = str(work.params[0].device)
    table = Table(optimizer, name, work.shapes, dtype, device, request.threads, _base(request, optimizer))
    gpu = {peer.label: "needs a GPU" for peer in peers if peer.gpu and not work.on_cuda}
    table.left_out |= gpu | {peer.label: "not installed" for peer in peers if not peer.installed}
    return table, [peer for peer in peers if peer.label not in table.left_out]


def _peers(request: Request, optimizer: str) -> list[Peer]:
    base = _base(request, optimizer)
    return [peer for peer in PEERS[optimizer] if request.peers or peer.package == OURS or peer.label == base]


def _base(request: Request, optimizer: str) -> str:
    """The first is ours, the last PyTorch's, which does less."""
    return PEERS[optimizer][0 if request.against == OURS else -1].label


def _write(console: Console, request: Request, tables: Sequence[Table], where: dict[str, str]) -> None:
    for path, text in ((request.csv, report.as_csv), (request.json, report.as_json)):
        if path is not None:
            write_text(path, text(tables, where))
            console.print(Text(f"Figures and versions are in {path}."), soft_wrap=True)
