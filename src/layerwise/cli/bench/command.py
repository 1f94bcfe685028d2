"""`layerwise bench` and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from layerwise.checks import Check, integer, number
from layerwise.checks import one_of as any_of
from layerwise.cli.bench.peers import PEERS
from layerwise.cli.bench.request import Request
from layerwise.cli.bench.run import run_bench
from layerwise.cli.bench.shapes import SETS, parameters
from layerwise.cli.exits import Mistake
from layerwise.cli.files import as_file, check_writable
from layerwise.cli.usage import one_of, read
from layerwise.threads import MOST, wanted_threads

DTYPES = ("float32", "bfloat16", "float16", "float64")
THREADS = Check(f"an integer from 1 to {MOST}", any_of(*range(1, MOST + 1)).convert)
DEFAULT = "resnet50"
FRONTS = ("torch", "numpy", "jax")


def _shapes() -> tuple[str, ...]:
    return tuple(SETS)


Sets = Annotated[
    list[str] | None,
    typer.Argument(help=f"Sets of tensors, of {', '.join(SETS)}.", **one_of("set of shapes", _shapes)),
]
Optimizers = Annotated[
    list[str] | None, typer.Option(help="Such as lamb; may be repeated.", **one_of("optimizer", lambda: PEERS))
]
Side = Annotated[str, typer.Option(help="Ratios to ours or theirs.", **one_of("side", lambda: ("ours", "theirs")))]


def command(
    shapes: Sets = None,
    model: Annotated[str | None, typer.Option(help="Your model: package.module:callable.")] = None,
    optimizer: Optimizers = None,
    front: Annotated[str, typer.Option(help="torch, numpy or jax.", **one_of("front", lambda: FRONTS))] = FRONTS[0],
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Compare with other packages.")] = True,
    against: Side = "ours",
    dtype: Annotated[str | None, typer.Option(help="Or bfloat16 ….", **one_of("dtype", lambda: DTYPES))] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int | None, typer.Option(**read(int, THREADS), help="Of ours and of PyTorch.")] = None,
    rounds: Annotated[int, typer.Option(**read(int, integer(3)), help="Steps of each that count.")] = 11,
    memory: Annotated[float | None, typer.Option(**read(float, number(0)), help="Take no more, in GiB.")] = None,
    csv: Annotated[
        Path | None, typer.Option(parser=as_file, metavar="<path>", help="Write a line for each to this file.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(parser=as_file, metavar="<path>", help="Write everything to this file.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="What can be measured here.")] = False,
) -> None:
    """Step time, host time and memory of our optimizers and of others that are installed."""
    options = {name: value for name, value in locals().items() if name != "show_list"}  # a request names them alike
    if show_list:
        print_list()
        return
    _check_together(shapes, model, front, threads)
    _check_files(csv, json)
    options |= {"shapes": shapes or [DEFAULT], "optimizer": optimizer or list(PEERS)}
    run_bench(Console(), Request(**options | {"threads": threads or wanted_threads()}))


def _check_together(shapes: list[str] | None, model: str | None, front: str, threads: int | None) -> None:
    if model is not None and shapes:
        raise Mistake(f"give shapes or --model, not both: {' '.join(shapes)} and {model}.")
    if front == "jax" and threads is not None:
        raise Mistake("--threads does not reach JAX, which takes the processors it may run on: taskset gives it fewer.")


def _check_files(csv: Path | None, json: Path | None) -> None:
    for path in filter(None, (csv, json)):
        check_writable(path)
    if csv is not None and json is not None and csv.resolve() == json.resolve():
        raise Mistake(f"--csv and --json are the same file, {csv}: give each its own.")


def print_list() -> None:
    """Print the sets of shapes and implementations, without importing any."""
    for name, make in SETS.items():
        shapes = make()
        print(f"shapes     {name}: {parameters(shapes):,} parameters in {len(shapes):,} tensors")
    for optimizer, peers in PEERS.items():
        for peer in peers:
            there = ("needs a GPU" if peer.gpu else "installed") if peer.installed else "not installed"
            print(f"{optimizer.lower():<10} {peer.label}: {there}")
