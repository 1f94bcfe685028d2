"""Engines carry out a step. One table says which there are; `choose` says which is taken, and why not another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from layerwise.errors import EngineError
from layerwise.rules.asks import Array, Now


@dataclass(frozen=True)
class Job:
    """One tensor's step, to be carried out in place: arrays as they are stored, settings as they apply to it."""

    rule: Any  # a module of layerwise.rules
    h: Any  # hyperparameters, fitted to this tensor
    now: Now
    p: Array
    g: Array
    state: Any  # the rule's State, of stored arrays
    block_dims: tuple[int, ...] = ()
    skip: Array | None = None  # true on the device where the step must leave everything as it is


Stats = dict[str, Array]


class Engine(Protocol):
    def step(self, jobs: Sequence[Job]) -> list[Stats]:
        """Carry out all jobs, writing parameters and state in place, and return what was measured on the way."""


@dataclass(frozen=True)
class Candidate:
    """A row of a front's table: an engine, or the reason why it is not to be had."""

    name: str
    engine: Engine | None
    declined: str = ""
    insisting: Engine | None = None  # raises where the engine would leave a job to another


def choose(wanted: str | None, table: Sequence[Candidate]) -> Engine:
    """The engine asked for, or the first of the table that is to be had."""
    rows = [row for row in table if wanted is None or (isinstance(wanted, str) and wanted == row.name)]
    if not rows:
        names = ", ".join(f'"{row.name}"' for row in table)
        raise EngineError(f"`engine` must be None or one of {names}, but is {wanted!r}. None picks the fastest.")
    for row in rows:
        if row.engine is not None:
            return row.engine if wanted is None else row.insisting or row.engine
    raise EngineError(f"engine {wanted!r} is not available: {rows[0].declined}. engine=None picks one that is.")
