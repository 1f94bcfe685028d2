"""The commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import layerwise
from layerwise.cli.info import info
from layerwise.cli.presets import show_presets
from layerwise.cli.recommend import as_json, show_recommendation
from layerwise.errors import HyperparameterError
from layerwise.recipes import recommend

app = typer.Typer(
    name="layerwise",
    help="LAMB, LARS and Adafactor.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def run() -> None:
    app(prog_name="layerwise")


def _version(wanted: bool) -> None:
    if wanted:
        print(layerwise.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show and exit.")
    ] = False,
) -> None:
    del version  # its callback has done the work


@app.command()
def presets() -> None:
    """List the named variants: what makes an optimizer equal to another implementation."""
    show_presets(Console())


@app.command("info")
def show_info() -> None:
    """Say which engines there are, with which instructions and threads, and why one is not to be had."""
    print("\n".join(info()))


@app.command("recommend")
def show_recommend(
    optimizer: Annotated[str, typer.Argument(help="lamb, lars or adafactor.")],
    batch: Annotated[int, typer.Argument(help="Samples a step, over all devices.")],
    reference_batch: Annotated[int | None, typer.Option(help="A batch that you have tuned, with …")] = None,
    reference_lr: Annotated[float | None, typer.Option(help="… the learning rate found good there.")] = None,
    reference_warmup: Annotated[float | None, typer.Option(help="Its warm-up, as a share of the run.")] = None,
    total_samples: Annotated[float | None, typer.Option(help="Samples of the whole run, to count steps.")] = None,
    like: Annotated[str | None, typer.Option(help="A published series, such as nus-resnet.")] = None,
    rule: Annotated[str, typer.Option(help="sqrt or linear.")] = "sqrt",
    as_text: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Learning rate, warm-up, betas and decay for a batch size, each with its source."""
    options = {name: value for name, value in locals().items() if name != "as_text"}  # recommend names them alike
    try:
        found = recommend(**options)
    except HyperparameterError as problem:
        typer.echo(f"layerwise: {problem}", err=True)
        raise typer.Exit(2) from None
    if as_text:
        print(as_json(found))
    else:
        show_recommendation(Console(), found)


@app.command()
def demo(
    act: Annotated[
        list[int] | None, typer.Option(min=1, max=3, help="1 LARS, 2 LAMB, 3 Adafactor; may be repeated.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Less training and one seed: a look, not a result.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the report to this file or into this folder.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The first of the seeds.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="Runs at the same time, each with one thread.")] = None,
) -> None:
    """See in two minutes, on real data, what LARS, LAMB and Adafactor are for, and get a report of it."""
    from layerwise.cli.demo.run import main  # not at the top: the other commands should neither wait for it nor need it

    raise typer.Exit(main(act or (), quick, out, seed, threads))
