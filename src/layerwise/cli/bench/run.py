"""The benchmark from beginning to end."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

import layerwise
from layerwise.cli.bench import report
from layerwise.cli.bench.measure import Measurement, Table
from layerwise.cli.bench.memory import available
from layerwise.cli.bench.origin import origin
from layerwise.cli.bench.peers import OURS, PEERS, Peer, Work
from layerwise.cli.bench.request import Request
from layerwise.cli.bench.screen import Screen
from layerwise.cli.files import write_text

Works = Callable[[Request], Iterator[tuple[str, Any]]]
VERSIONS = {
    "torch": ("torch", "pytorch_optimizer", "timm", "transformers", "apex", "deepspeed", "bitsandbytes"),
    "numpy": ("jax", "optax", "torch", "transformers"),
    "jax": ("jax", "optax"),
}


def run_bench(console: Console, request: Request) -> None:
    """Measure, show each table when it is finished, and write the files. Ctrl-C shows what was measured until then."""
    layerwise.set_num_threads(request.threads)
    where, tables = origin(("layerwise", "numpy", *VERSIONS[request.front])), list[Table]()
    try:
        with Screen(console) as screen:
            _measure(console, request, screen, tables)
    except KeyboardInterrupt:
        console.print(Text("Interrupted: above is what was measured until then. No file is written.", style="yellow"))
        raise
    finally:
        if any(table.rows for table in tables):
            for line in report.legend(tables, where):
                console.print(Text(line, style="dim"), soft_wrap=not console.is_terminal)
    _write(console, request, tables, where)


def _measure(console: Console, request: Request, screen: Screen, tables: list[Table]) -> None:
    works, free, catalogue = _front(request)
    for name, work in works(request):
        for optimizer in request.optimizers:
            table, peers = _table(request, catalogue[optimizer], optimizer, name, work)
            tables.append(table)
            try:
                room = request.room(free(work.device), work.bytes)
                Measurement(table, peers, work, room, screen).run(request.rounds)
            finally:
                report.show(console, table)
        del work  # before the next is made
        gc.collect()


def _front(request: Request) -> tuple[Works, Callable[[str], int], Mapping[str, tuple[Peer, ...]]]:
    """Return the functions that make the tensors and that find the free memory, and the implementations compared."""
    if request.front == "torch":
        from layerwise.cli.bench import tensors

        return tensors.works, tensors.free, PEERS
    from layerwise.cli.bench import arrays

    return arrays.works, lambda _: available(), {"numpy": arrays.NUMPY_PEERS, "jax": arrays.JAX_PEERS}[request.front]


def _table(request: Request, every: Sequence[Peer], optimizer: str, name: str, work: Work) -> tuple[Table, list[Peer]]:
    """Return an empty table and the implementations to measure. Of all, the first is ours, and the last does less."""
    base = every[0 if request.against == "ours" else -1].label
    peers = [peer for peer in every if request.peers or peer.package == OURS or peer.label == base]
    table = Table(optimizer, name, work.shapes, work.dtype, work.device, request.threads, base)
    reasons = {peer.label: peer.why_not(work, request.threads) for peer in peers}
    table.left_out |= {label: why for label, why in reasons.items() if why is not None}
    return table, [peer for peer in peers if peer.label not in table.left_out]


def _write(console: Console, request: Request, tables: Sequence[Table], where: dict[str, str]) -> None:
    for path, text in ((request.csv, report.as_csv), (request.json, report.as_json)):
        if path is not None:
            write_text(path, text(tables, where))
            console.print(Text(f"Figures and versions are in {path}."), soft_wrap=True)
