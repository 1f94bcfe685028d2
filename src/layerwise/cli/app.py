"""The commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

import layerwise
from layerwise.cli import bench, memory, presets, recommend
from layerwise.cli import info as facts
from layerwise.cli.exit_codes import INTERRUPTED, WRONG
from layerwise.cli.usage import UsageError, in_one_line
from layerwise.contrib._files import printable

app = typer.Typer(
    name="layerwise",
    help="Optimizers that size each layer's step to the layer.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def run(arguments: Sequence[str]) -> int:
    """Return the exit code of the program. A usage error is one line on the standard error."""
    try:
        return app(list(arguments), prog_name="layerwise", standalone_mode=False) or 0
    except UsageError as problem:
        typer.echo(printable(in_one_line(problem)), err=True)
        return WRONG
    except typer.Abort:  # some versions turn Ctrl-C into this
        return INTERRUPTED


def _version(wanted: bool) -> None:
    if wanted:
        print(layerwise.__version__)
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show and exit.")
    ] = False,
) -> None:
    del version  # the callback of this option has done the work
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(short_help="Versions, engines, threads and devices.")
def info(
    devices: Annotated[
        bool, typer.Option("--devices", help=("Ask torch and jax for their devices: takes seconds."))
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Print Markdown for a bug report.")] = False,
) -> None:
    """Show the engines with their instructions and threads, and why one is unavailable."""
    facts.show(devices, json, report)


app.command("presets", short_help="List the presets, or show one.")(presets.command)
app.command("bench", short_help="Time a step of your model, compared with PyTorch's.")(bench.command)
app.command("memory", short_help="Memory needed to train a model of any size.")(memory.command)
app.command("recommend", short_help="Settings for a batch size, with their sources.")(recommend.command)
