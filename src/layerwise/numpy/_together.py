"""A step of named arrays, by one optimizer or several together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from layerwise.core.plan import Held
from layerwise.engines import Candidate, Job, choose
from layerwise.engines.compiled import candidate
from layerwise.engines.distributor import prepare
from layerwise.engines.rule import RuleEngine
from layerwise.errors import GradientError, ParameterError
from layerwise.names import Name
from layerwise.numpy import _arrays
from layerwise.numpy._arrays import Array
from layerwise.numpy._memory import Occupied
from layerwise.numpy._slots import Slot
from layerwise.rules.asks import Now

STACK = 1 << 12  # elements up to which a step costs more in calls than in arithmetic
LIBRARY = _arrays.Arrays()
RULE = RuleEngine(LIBRARY, stack_size=STACK)
ENGINES = (candidate(), Candidate("rule", RULE))
Entries = Mapping[Name, tuple[Array, Array]]  # weights and gradient of each name that is due
Together = tuple[tuple[Name, ...], tuple[bool, ...]]  # names that are stepped together, and which jobs are plain


@dataclass
class Begun:
    """The work of one optimizer's step."""

    entries: Entries
    pieces: list[tuple[Name, Held]]
    jobs: list[Job]
    nows: Mapping[Name, Now]
    slots: Mapping[Name, Slot]
    converted: Mapping[Name, Array]  # weights that become others because they are stored in another way
    outcome: Any  # what the optimizer takes over afterwards


class Stepper(Protocol):
    """An optimizer, as far as steps need it."""

    def _begun(self, entries: Entries, whole: bool) -> Begun: ...
    def _took(self, begun: Begun, measured: Iterator[Any]) -> None: ...


def step_together(
    due: Mapping[Any, Entries],
    skips: bool,
    engine: str | None,
    whole: bool,
    layouts: dict[Together, Any],
    most: int,
) -> bool:
    """Step the names of each of these optimizers: all, or none if one cannot be stepped. Keep so many layouts at most.

    Return False if the step was skipped because of nan or inf.
    """
    entries = {name: one for each in due.values() for name, one in each.items()}
    memory = Occupied({name: p for name, (p, _) in entries.items()})
    memory.check_distinct()
    if not entries:
        return True
    steppers: Mapping[Stepper, Entries] = {one: each for one, each in due.items() if each}
    if skips and not all(_arrays.is_finite(g, p) for p, g in entries.values()):
        return False
    begun = {stepper: stepper._begun(each, whole) for stepper, each in steppers.items()}
    apart = {name: memory.apart(g) for name, (_, g) in entries.items()}
    measured = _carried_out(list(begun.values()), apart, engine, layouts)
    if len(layouts) > most:
        del layouts[next(iter(layouts))]
    for stepper, one in begun.items():
        stepper._took(one, measured)
    return True


def _carried_out(
    begun: list[Begun], grads: Mapping[Name, Array], engine: str | None, layouts: dict[Together, Any]
) -> Iterator[Any]:
    """Carry out steps, and return the measurements of each job."""
    jobs = [job for one in begun for job in one.jobs]
    together = tuple(name for one in begun for name in one.entries), tuple(job.storage is None for job in jobs)
    prepared = prepare(choose(engine, ENGINES), jobs, layouts.pop(together, None))
    with np.errstate(all="ignore"):
        for one in begun:
            for name, weights in one.converted.items():
                one.entries[name][0][...] = weights
        each = [(held.view(grads[name]), one.nows[name]) for one in begun for name, held in one.pieces]
        prepared.step([g for g, _ in each], [now for _, now in each])
        for one in begun:
            for name, slot in one.slots.items():
                if slot.master is not None:
                    one.entries[name][0][...] = slot.master
    layouts[together] = prepared.layouts
    return iter(prepared.stats())


def check_engine(name: Any) -> None:
    choose(name, ENGINES)


def check_mappings(weights: Any, grads: Any) -> None:
    """Raise unless these are mappings from names, those of gradients among those of weights."""
    for argument, given in (("weights", weights), ("grads", grads)):
        if not isinstance(given, Mapping):
            raise ParameterError(f"`{argument}` must be a mapping from names to arrays, but is {type(given).__name__}.")
    for name in grads:
        if name not in weights:
            raise GradientError(f"there is a gradient for {name!r}, but no weights. Known are: {few(weights)}.")


def few(names: Mapping[Any, Any]) -> str:
    """Return the first of some names, in words."""
    first = ", ".join(map(repr, list(names)[:5]))
    return (first + ", …" if len(names) > 5 else first) or "none"
