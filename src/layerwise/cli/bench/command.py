"""`layerwise bench` from its options to its files."""

from __future__ import annotations

import gc
import sys
from math import inf
from pathlib import Path
from typing import Annotated

import typer

import layerwise
from layerwise.checks import integer, number
from layerwise.cli.bench import report
from layerwise.cli.bench.measure import Table, measure, tables_of
from layerwise.cli.bench.memory import GIB
from layerwise.cli.bench.peers import OURS, PEERS
from layerwise.cli.bench.shapes import SETS, parameters
from layerwise.cli.files import as_file, check_writable, write_text
from layerwise.cli.usage import one_of, read
from layerwise.errors import LayerwiseError
from layerwise.threads import wanted_threads

DTYPES = ("float32", "bfloat16", "float16", "float64")
DEFAULT = "resnet50"
VERSIONS = (
    "layerwise", "numpy", "torch", "pytorch_optimizer", "timm", "transformers", "apex", "deepspeed", "bitsandbytes"
)  # fmt: skip

Sets = Annotated[
    list[str] | None,
    typer.Argument(help=f"Sets of tensors, of {', '.join(SETS)}.", **one_of("set of shapes", lambda: SETS)),
]
Optimizers = Annotated[
    list[str] | None, typer.Option(help="Such as lamb; may be repeated.", **one_of("optimizer", lambda: PEERS))
]


def command(
    shapes: Sets = None,
    model: Annotated[str | None, typer.Option(help="Your model: package.module:callable.")] = None,
    optimizer: Optimizers = None,
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Compare with other packages.")] = True,
    dtype: Annotated[str | None, typer.Option(help="Or bfloat16 ….", **one_of("dtype", lambda: DTYPES))] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int | None, typer.Option(**read(int, integer(1)), help="Of ours and of PyTorch.")] = None,
    rounds: Annotated[int, typer.Option(**read(int, integer(3)), help="Steps of each that count.")] = 11,
    memory: Annotated[float | None, typer.Option(**read(float, number(0)), help="Take no more, in GiB.")] = None,
    json: Annotated[
        Path | None, typer.Option(parser=as_file, metavar="<path>", help="Write everything to this file.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="What can be measured here.")] = False,
) -> None:
    """Step time, host time and memory of our optimizers and of others that are installed."""
    if show_list:
        print_list()
        return
    if model is not None and shapes:
        raise LayerwiseError(f"give shapes or --model, not both: {' '.join(shapes)} and {model}.")
    if json is not None:
        check_writable(json)
    import torch

    from layerwise.cli.bench import tensors

    layerwise.set_num_threads(threads or wanted_threads())
    torch.set_num_threads(wanted_threads())
    most = inf if memory is None else memory * GIB
    where, tables = report.origin(VERSIONS), list[Table]()
    try:
        for name, work in tensors.works(shapes or [DEFAULT], model, dtype, tensors.device_of(device), most):
            for one in optimizer or PEERS:
                compared = [peer for peer in PEERS[one] if peers or peer.package == OURS]
                room = min(tensors.SPARE * tensors.free(work.device), most - work.bytes)
                for table, together in tables_of(one, name, work, wanted_threads(), compared, room):
                    tables.append(table)
                    try:
                        measure(table, together, work, rounds, say=_say)
                    finally:
                        _say("")
                        print(*report.lines(table), sep="\n")
            del work  # before the next is made
            gc.collect()
    except KeyboardInterrupt:
        print("Interrupted: above is what was measured until then. No file is written.")
        raise
    finally:
        if any(table.rows for table in tables):
            print(*report.legend(tables, where), sep="\n")
    if json is not None:
        write_text(json, report.as_json(tables, where))
        print(f"Figures and versions are in {json}.")


def _say(what: str) -> None:
    """Show on a terminal what is being done, in one line that the next one takes the place of."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)


def print_list() -> None:
    """Print the sets of shapes and implementations, without importing any."""
    for name, make in SETS.items():
        shapes = make()
        print(f"shapes     {name}: {parameters(shapes):,} parameters in {len(shapes):,} tensors")
    for optimizer, peers in PEERS.items():
        for peer in peers:
            there = ("needs a GPU" if peer.gpu else "installed") if peer.installed else "not installed"
            print(f"{optimizer.lower():<10} {peer.label}: {there}")
