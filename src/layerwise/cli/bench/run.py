"""The benchmark from beginning to end."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from rich.console import Console
from rich.text import Text

import layerwise
from layerwise.cli.bench import report
from layerwise.cli.bench.measure import Measurement, Table
from layerwise.cli.bench.memory import available
from layerwise.cli.bench.origin import origin
from layerwise.cli.bench.peers import OURS, PEERS, Peer
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
        for optimizer in request.optimizer:
            base, peers = _peers(request, catalogue[optimizer])
            table = Table.of(optimizer, name, work, request.threads, base)
            tables.append(table)
            try:
                room = request.room(free(work.device), work.bytes)
                Measurement(table, peers, work, room, screen).run(request.rounds)
            finally:
                show(console, table)
        del work  # before the next is made
        gc.collect()


def _front(request: Request) -> tuple[Works, Callable[[str], int], Mapping[str, tuple[Peer, ...]]]:
    """Return the functions that make the tensors and that find the free memory, and the implementations compared."""
    if request.front == "torch":
        from layerwise.cli.bench import tensors

        return tensors.works, tensors.free, PEERS
    from layerwise.cli.bench import arrays

    return arrays.works, lambda _: available(), {"numpy": arrays.NUMPY_PEERS, "jax": arrays.JAX_PEERS}[request.front]


def _peers(request: Request, every: Sequence[Peer]) -> tuple[str, list[Peer]]:
    """Return the base of the comparison and the implementations. Of all, the first is ours, and the last does less."""
    base = every[0 if request.against == "ours" else -1].label
    return base, [peer for peer in every if request.peers or peer.package == OURS or peer.label == base]


def show(console: Console, table: Table) -> None:
    """Print a table as wide as the terminal; elsewhere as wide as it gets, a line for each implementation."""
    ours = tuple(row.label for row in table.rows.values() if row.package == OURS)
    for i, line in enumerate(report.lines(table, console.width if console.is_terminal else inf)):
        style = "bold" if i == 0 or line.startswith(ours) else "dim" if line.startswith("left out") else ""
        console.print(Text(line, style=style), soft_wrap=not console.is_terminal)


def _write(console: Console, request: Request, tables: Sequence[Table], where: dict[str, str]) -> None:
    for path, text in ((request.csv, report.as_csv), (request.json, report.as_json)):
        if path is not None:
            write_text(path, text(tables, where))
            console.print(Text(f"Figures and versions are in {path}."), soft_wrap=True)
