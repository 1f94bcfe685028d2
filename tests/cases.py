"""The optimizers under test, one row each: everything that tests of all of them go through."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from namespaces import NAMESPACES, trajectory
from reference.case import SHARED, Options
from reference.case import Case as Known

import layerwise.numpy
from layerwise.catalog.registry import ENTRIES, Entry
from layerwise.engines.printed_programs import RULES
from layerwise.options.settings import options_in_order
from layerwise.rules.requests import Keep


@dataclass(frozen=True)
class Case:
    """One optimizer: what the registry has of it, and what tests know of it."""

    name: str
    rule: ModuleType
    hyper: type[Any]
    known: Known
    options: dict[str, tuple[Any, ...]]  # values of each, a usual one first

    def __getattr__(self, name: str) -> Any:
        return getattr(self.known, name)

    @property
    def numpy(self) -> type[Any]:
        made: type[Any] = getattr(layerwise.numpy, self.name)
        return made

    @cached_property
    def rounds(self) -> int:
        """How often a step of a matrix asks for sums, counted by driving the rule."""
        return len(self.asked((3, 2), self.busy))

    def rounds_across(self, shape: tuple[int, ...]) -> int:
        """Return how often a step asks for sums that run along the first dimension."""
        return sum(
            any(0 in (getattr(one, "dims", None) or (0,)) for one in each) for each in self.asked(shape, self.busy)
        )

    def asked(self, shape: tuple[int, ...], options: Options) -> list[Any]:
        """Return what a step of a tensor asks for, round by round."""
        asked: list[Any] = []
        self._step(shape, options, lambda stepping: _counted(stepping, asked))
        return asked

    def hands_on(self, shape: tuple[int, ...], options: Options) -> None:
        """Raise if a step of a tensor computes with what `Keep` answered."""
        self._step(shape, options, _handed_on)

    def _step(self, shape: tuple[int, ...], options: Options, driven: Callable[[Any], Any]) -> None:
        rule = SimpleNamespace(**vars(self.rule))
        rule.step = lambda *given: driven(self.rule.step(*given))
        trajectory(NAMESPACES[0], rule, self.hyper(**options), [np.ones(shape)], [[np.ones(shape)]])

    @property
    def measures_weights(self) -> bool:
        """Whether a step is measured against the weights, by a ratio or by their root mean square."""
        return self.options.get("adapt", (self.known.by_ratio,))[0] is not False or "scale_parameter" in self.options

    def exchanges(self, more: int = 0) -> int:
        """Return how often processes exchange sums where the step asks `more` often: once even if it asks for none."""
        return max(1, self.rounds + more)

    def usual(self) -> Options:
        return {name: values[0] for name, values in self.options.items()}

    def alone(self, option: str, value: Any) -> tuple[Options, Options]:
        """Return the options beside which a value of one shows, without it and with it."""
        beside = {**self.shows_with.get(option, {})}
        if isinstance(value, Hashable):  # others are not named
            beside.update(self.shows_with.get((option, value), {}))
        without = self.consistent({**self.usual(), **beside})
        return without, self.consistent({**without, option: value})

    def unusual(self) -> list[tuple[str, Any]]:
        """Return every option with each of its values but the usual one."""
        return [(option, value) for option, values in self.options.items() for value in values[1:]]

    def drawn(self, seed: int) -> Options:
        """Return options drawn at random: each usual half of the time, so that draws stay unlike one another."""
        draw = random.Random(f"{self.name} {seed}")
        return self.consistent(
            {name: values[0] if draw.random() < 0.5 else draw.choice(values) for name, values in self.options.items()}
        )


class Kept:
    """The answer to `Keep`, which refuses to be computed with: stored state may be rounded, or several arrays."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise AssertionError(
            "The rule computes with what `Keep` answered. That may be rounded, or several arrays: compute with what it "
            "was given, and only return the answer, in `Stepped`."
        )

    __getattr__ = __array__ = __array_ufunc__ = __getitem__ = __iter__ = __bool__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __neg__ = __abs__ = __pow__ = __lt__ = __gt__ = __le__ = __ge__ = _refuse


def _handed_on(stepping: Any) -> Any:
    """Pass on what a rule asks and is answered, but for the answer to `Keep`, which it must only hand on."""
    answer = None
    while True:
        try:
            request = stepping.send(answer)
        except StopIteration as done:
            state = (x.array if isinstance(x, Kept) else x for x in done.value.state)
            return done.value._replace(state=type(done.value.state)(*state))
        answer = yield request
        if isinstance(request, Keep):
            answer = type(answer)(*(None if x is None else Kept(x) for x in answer))


def _counted(stepping: Any, asked: list[Any]) -> Any:
    """Pass on what a rule asks and is answered, and write down every request for sums."""
    answer = None
    while True:
        try:
            request = stepping.send(answer)
        except StopIteration as done:
            return done.value
        if not isinstance(request, Keep):
            asked.append(request)
        answer = yield request


def _case(entry: Entry) -> Case:
    module = f"reference.{entry.rule.__name__.rpartition('.')[2]}"
    known = getattr(import_module(module), "CASE", None) if find_spec(module) else None
    assert known is not None, (
        f"{entry.rule.__name__} has no reference: write tests/{module.replace('.', '/')}.py, the paper's algorithm "
        "element by element in float64, with a CASE that says what else tests have to know (tests/reference/case.py)."
    )
    values = {**SHARED, **known.options}
    missing = [name for name in options_in_order(entry.hyper) if name not in values]
    assert not missing, f"{module}.CASE has no values for the options {missing}, of which one is usual and goes first."
    return Case(entry.name, entry.rule, entry.hyper, known, {n: values[n] for n in options_in_order(entry.hyper)})


CASES = [_case(entry) for entry in ENTRIES.values()]


def case_of(name: str) -> Case:
    """Return the row of one optimizer."""
    return next(case for case in CASES if case.name == name)


KERNELED = [case for case in CASES if case.rule.__name__ in RULES]  # for whose steps kernels were printed
