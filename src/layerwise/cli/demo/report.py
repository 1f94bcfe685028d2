"""What is shown and written at the end. Every statement is made from the figures of this run."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from layerwise.cli.demo import network
from layerwise.cli.demo.cells import Cell
from layerwise.cli.demo.data import TEST
from layerwise.cli.demo.screen import accuracy
from layerwise.cli.demo.settings import Plan

NADO = "Nado et al. 2021, arXiv 2102.06356"


def show(console: Console, plan: Plan, table: Sequence[Cell]) -> None:
    """The table and what it says, broken into lines on a terminal only."""
    console.print(_table(table))
    if plan.seeds > 1:
        console.print(
            f"Accuracy: mean ± standard deviation of {plan.seeds} seeds. Seconds: theirs together.\n", highlight=False
        )
    for paragraph in paragraphs(plan, table):
        console.print(paragraph, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def _table(table: Sequence[Cell]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("optimizer", no_wrap=True)
    for heading in ("batch", "learning\nrate", "steps", "test\naccuracy, %", "state,\nB/param", "seconds"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for cell, after in zip(table, (*table[1:], None), strict=True):
        name = "  re-tuned" if cell.retuned else cell.contender.name
        lr, seconds = f"{cell.lr:.3g}", f"{sum(cell.seconds):.2f}"
        state = f"{cell.bytes_per_parameter:.2f}"
        row = (name, str(cell.batch), lr, str(cell.steps), accuracy(cell), state, seconds)
        shown.add_row(
            *row, style="dim" if cell.retuned else "", end_section=not after or after.contender != cell.contender
        )
    return shown


def paragraphs(plan: Plan, table: Sequence[Cell]) -> list[str]:
    by_name: dict[str, list[Cell]] = {}
    for cell in table:
        by_name.setdefault(cell.contender.name, []).append(cell)
    changes = "; ".join(_change(*found) for found in by_name.values())
    adafactor, adamw = by_name["Adafactor"][0], by_name["AdamW"][0]
    shows = (
        f"What this shows. From batch {plan.small} to {plan.large}, in the same {plan.epochs} epochs and with the "
        f"learning rate scaled by the square-root rule, test accuracy (in %) changed as follows. {changes}. "
        f"Adafactor, here without momentum, kept {adafactor.bytes_per_parameter:.2f} bytes of state per parameter, "
        f"AdamW {adamw.bytes_per_parameter:.2f}."
    )
    not_shown = (
        f"What it does not show. One network of two layers and {network.PARAMETERS:,} parameters, {TEST} test images "
        f"(one of them is {100 / TEST:.2f} points) and {plan.seeds} seed{'s' * (plan.seeds > 1)}: differences of a "
        "point mean nothing, and nothing follows for deep networks, for speed, or for models of another size. "
        f"Tuned for the batch, momentum SGD and Adam can match LARS and LAMB ({NADO})."
    )
    hasty = [] if plan.retuned else ["This was a quick run: the learning rates were tuned for one three times as long."]
    return [shows, not_shown, *hasty]


def _change(small: Cell, large: Cell, retuned: Cell | None = None) -> str:
    name = small.contender.name
    if small.mean is None or large.mean is None:
        return f"{name}: a run diverged"
    moved = large.mean - small.mean
    within = len(small.seconds) > 1 and abs(moved) <= small.spread + large.spread
    words = [f"{moved:+.1f}{', within the spread of the seeds' if within else ''}"]
    if retuned is not None:
        words.append("re-tuned: diverged" if retuned.mean is None else f"re-tuned {retuned.mean:.1f}")
    return f"{name} {small.mean:.1f} → {large.mean:.1f} ({'; '.join(words)})"


def as_json(plan: Plan, seeds: range, table: Sequence[Cell]) -> str:
    """All figures, with the settings and versions that they belong to."""
    packages = ("layerwise", "numpy", "scikit-learn")
    document = {
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "machine": platform.platform(),
        "settings": {**asdict(plan), "first_seed": seeds.start, "hidden": network.HIDDEN, "dtype": np.float32.__name__},
        "parameters": network.PARAMETERS,
        "cells": [_as_row(cell) for cell in table],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _as_row(cell: Cell) -> dict[str, object]:
    return {
        "optimizer": cell.contender.name,
        "options": repr(cell.contender.make(cell.lr)),
        "batch": cell.batch,
        "peak_lr": cell.lr,
        "retuned": cell.retuned,
        "steps": cell.steps,
        "test_accuracy": cell.accuracies,
        "diverged": cell.diverged,
        "state_bytes": cell.state_bytes,
        "seconds": cell.seconds,
    }
