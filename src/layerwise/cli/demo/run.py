"""The demo from beginning to end."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console
from threadpoolctl import threadpool_limits

from layerwise.cli.demo import data
from layerwise.cli.demo.cells import Cell, cells
from layerwise.cli.demo.report import as_json, show
from layerwise.cli.demo.screen import Screen
from layerwise.cli.demo.settings import Plan
from layerwise.cli.demo.train import last, train
from layerwise.cli.files import write_text


def run_demo(console: Console, plan: Plan, seed: int, out: Path | None) -> None:
    """Train, show, and write down if asked to."""
    digits = data.load()
    table = list(cells(plan))
    seeds = range(seed, seed + plan.seeds)
    steps = plan.seeds * sum(cell.steps for cell in table)
    # One thread: matrices this small gain nothing from a second, and lose much where other work wants it too.
    with threadpool_limits(1), Screen(console, steps) as screen:
        for cell in table:
            _fill(cell, plan, seeds, digits, screen)
    show(console, plan, table)
    if out is not None:
        write_text(out, as_json(plan, seeds, table))
        console.print(f"Figures, settings and versions are in {out}.", highlight=False, markup=False, soft_wrap=True)


def _fill(cell: Cell, plan: Plan, seeds: range, digits: data.Digits, screen: Screen) -> None:
    for seed in seeds:
        run = train(cell.contender, plan, cell.batch, cell.lr, digits.train, seed)
        cell.add(last(run, partial(screen.step, cell)), digits.test)
    screen.finished(cell)
