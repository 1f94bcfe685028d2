"""The table of what is recommended for a batch size."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from layerwise.cli.usage import completing
from layerwise.recipes import CURVES, Line, Recommendation, recommend
from layerwise.recipes.question import EXPONENTS, OPTIMIZERS


def command(
    optimizer: Annotated[
        str, typer.Argument(help="lamb, lars or adafactor.", autocompletion=completing(lambda: OPTIMIZERS))
    ],
    batch: Annotated[int, typer.Argument(help="Samples a step, over all devices.")],
    reference_batch: Annotated[int | None, typer.Option(help="A batch that you have tuned, with …")] = None,
    reference_lr: Annotated[float | None, typer.Option(help="… the learning rate found good there.")] = None,
    reference_warmup: Annotated[float | None, typer.Option(help="Its warm-up, as a share of the run.")] = None,
    reference_decay: Annotated[
        float | None, typer.Option(help="The weight decay of an AdamW run at that rate, for LAMB that keeps norms.")
    ] = None,
    total_samples: Annotated[float | None, typer.Option(help="Samples of the whole run, to count steps.")] = None,
    like: Annotated[
        str | None,
        typer.Option(
            help="A published series, such as nus-resnet.",
            autocompletion=completing(lambda: (curve.name for curve in CURVES)),
        ),
    ] = None,
    rule: Annotated[str, typer.Option(help="sqrt or linear.", autocompletion=completing(lambda: EXPONENTS))] = "sqrt",
    as_text: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Learning rate, warm-up, betas and decay for a batch size, each with its source."""
    options = {name: value for name, value in locals().items() if name != "as_text"}  # recommend names them alike
    found = recommend(**options)
    if as_text:
        print(as_json(found))
    else:
        show_recommendation(Console(), found)


def show_recommendation(console: Console, found: Recommendation) -> None:
    """Print a table on a terminal; elsewhere a line for each setting."""
    if not console.is_terminal:
        print(found)
        return
    title, *_ = found.explain()
    console.print(Text(title, style="bold"))
    console.print(_table(found))
    for note in found.notes:
        console.print(Text(f"note: {note}"))
    for source in found.sources:
        console.print(Text(source, style="dim"))


def as_json(found: Recommendation) -> str:
    more = {"warmup_steps": found.warmup_steps, "extrapolated": found.extrapolated, "kwargs": found.kwargs()}
    return json.dumps(asdict(found) | more, indent=2)


def _table(found: Recommendation) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_lines=False, pad_edge=False)
    table.add_column("setting", no_wrap=True)
    table.add_column("value", no_wrap=True)
    table.add_column("where it is from, and how far away")
    for line in found.lines:
        table.add_row(*_row(line), style="dim" if line.alternative else "")
    return table


def _row(line: Line) -> tuple[Text, ...]:
    setting = f"  {line.setting}" if line.alternative else line.setting
    far = (f"\n{line.how_far}", "yellow" if line.extrapolated else "cyan")
    return Text(setting), Text(line.value, style="" if line.alternative else "bold"), Text.assemble(line.why, far)
