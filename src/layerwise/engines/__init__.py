"""Engines carry out steps. One table says which there are; `choose` says which is taken, and why not another."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from layerwise.drive import Others
from layerwise.errors import EngineError
from layerwise.rules.asks import Array, Now


class Job(NamedTuple):
    """One tensor, or a piece of one, as it is stored, and the settings that apply to it.

    The extension knows the fields by their places.
    """

    rule: Any  # a module of layerwise.rules
    h: Any  # hyperparameters, fitted to this tensor
    p: Array
    state: Any  # the rule's State, of stored arrays
    block_dims: tuple[int, ...] = ()
    shape: tuple[int, ...] | None = None  # of the whole, where others have parts of it
    parts: int = 1  # how many there are
    cut: Hashable = None  # and how it is cut: jobs of one shape and cut are alike with everybody


class Counter(NamedTuple):
    """In place of `Now.t`: where the steps before this one are counted, on the device. Who steps adds the one."""

    step: Array


Stats = Mapping[str, Array]


class Changed(Exception):
    """Raised by a step, with nothing touched, where an array is no longer what it was when the step was prepared."""


class Prepared(Protocol):
    """Jobs that are stepped together, with all that can be planned ahead."""

    notices: bool
    """Whether `step` looks at the arrays itself, and raises `Changed`."""
    counts: bool
    """Whether `step`, where counts live on the device, is given them as they are (`Counter`), and adds one to each that
    is stepped. A job that is one of several of a tensor, or has `others`, is given t all the same."""

    @property
    def layouts(self) -> Any:
        """What has been planned, without any array: for the next `prepare` of jobs like these.

        None where this is not to be replaced for other numbers, as where a CUDA graph may replay it.
        """

    def step(
        self, grads: Sequence[Array], nows: Sequence[Now], skip: Array | None = None, others: Others | None = None
    ) -> None:
        """Carry out the jobs, writing parameters and state in place; given is what differs from step to step.

        Where `skip` is true, on the device, everything is left as it is. Where there are `others` with parts of these
        tensors, they complete the sums, and nothing is written before the last of them is known.
        """

    def stats(self) -> list[Stats]:
        """What was measured on the way of the last step, for each job."""


class Engine(Protocol):
    def prepare(self, jobs: Sequence[Job], layouts: Any = None) -> Prepared:
        """Plan the step of these jobs, for as long as they stay what they are.

        `layouts` are those of an earlier plan for jobs like these, which have other arrays now, or other numbers in
        their hyperparameters. What still holds of them is not planned again.
        """


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
