"""Which optimizers a test of all of them is tried with.

Tests that are about an option leave out optimizers that do not take it. A test says
`@pytest.mark.needs("max_grad_norm")`; options among its parameters, by name or in dicts, need no mark.

A mechanism depends on what a rule sums and keeps (`KINDS`), and not on which rule it is. So `make test-all` tries each
combination of a test's other parameters with an optimizer of each kind, and three at least, in turn from one to the
next; `make test` tries it with two, or with as many more as try all kinds where the test has few combinations. Where it
says `@pytest.mark.thinned(n, m)`, `make test` tries n and `make test-all` m, or as many as usual; with
`@pytest.mark.kinds("rows and columns")` one of this kind is always among them. `EVERY=1 make test-all` tries all. What
says something of each rule is in one of `OF_RULES`, or marked `every`, and tried with all of them by `make test`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import pytest

from layerwise.catalog.registry import ENTRIES, Entry

# Every option that an optimizer takes.
TAKEN = {name: {spec.name for spec in fields(entry.hyper)} for name, entry in ENTRIES.items()}


def _kind(entry: Entry) -> str:
    """Return what steps of a matrix sum and keep, as the rule declares it."""
    h = entry.hyper().fit((3, 2), (), 1e-7)
    kept = {shape for shape in entry.rule.shapes(h, (3, 2)) if shape is not None}
    if (1, 1) in kept:
        return "numbers of a layer"
    if not kept <= {(3, 2)}:
        return "factored"
    if h.of_matrices:
        return "matrices"
    return "rows and columns" if hasattr(h, "dims") else "whole"


KINDS = {name: _kind(entry) for name, entry in ENTRIES.items()}
FEWEST, USUALLY = 2, 3  # that `make test` and `make test-all` try a combination with
OF_RULES = ("parity", "reference")  # folders; and files that are in none
# Without one that is also an argument of all optimizers, in NumPy.
OPTIONS = set().union(*TAKEN.values()) - {"decay"}


class Case(NamedTuple):
    """One of a test's cases, before pytest makes an item of it."""

    test: Any  # its function, as pytest collects it
    call: Any  # its parameters
    optimizer: str | None  # which is among them
    others: list[Any]  # of them

    @classmethod
    def of(cls, test: Any, call: Any) -> Case:
        named = [(_name(one), one) for one in call.params.values()]
        optimizer = next((name for name, _ in named if name in TAKEN), None)
        return cls(test, call, optimizer, [one for name, one in named if name not in TAKEN])

    @property
    def is_slow(self) -> bool:
        return next(self.marks("slow"), None) is not None

    def marks(self, name: str) -> Iterator[Any]:
        yield from self.test.iter_markers(name)
        yield from (mark for mark in self.call.marks if mark.name == name)

    def mark(self, mark: Any) -> None:
        self.call.marks.append(mark.mark)


def chosen(test: Any, calls: list[Any]) -> list[Case]:
    """Return what `make test-all` tries of a test, with what `make test` does not marked as slow."""
    kept = thin([case for call in calls if _applies(case := Case.of(test, call))])
    for case in _repeated(kept):
        case.mark(pytest.mark.repeats)
    return kept


def _applies(case: Case) -> bool:
    """Return whether the optimizer among a test's parameters, if there is one, takes all options that it is about."""
    if case.optimizer is None:
        return True
    needed = {name for mark in case.marks("needs") for name in mark.args}
    return needed | {name for one in case.others for name in _options(one)} <= TAKEN[case.optimizer]


def thin(cases: list[Case]) -> list[Case]:
    """Mark as slow what `make test-all` tries of a test and `make test` does not, and leave out what neither does."""
    groups: dict[Any, list[Case]] = {}
    for case in cases:
        if case.optimizer:
            groups.setdefault(tuple(map(repr, case.others)), []).append(case)
    left_out: set[int] = set()
    # From the test's own name, so that no test has other cases because there is one more.
    for turn, group in enumerate(groups.values(), crc32(cases[0].test.nodeid.encode()) if cases else 0):
        most, in_all = _most(group, len(groups))
        ordered = sorted(_in_turn(group, turn), key=lambda case: case.is_slow)
        for case in ordered[most:]:
            case.mark(pytest.mark.slow)
        if not os.environ.get("EVERY"):
            left_out |= {id(case.call) for case in ordered[in_all:]}
    return [case for case in cases if id(case.call) not in left_out]


def _in_turn(group: list[Case], turn: int) -> list[Case]:
    """Return the cases in the order in which they are tried: one of each kind, then another of each."""
    once_per_kind: dict[str, list[Case]] = {}
    for case in group:
        once_per_kind.setdefault(_kind_of(case), []).append(case)
    piles = [_turned(pile, turn // len(once_per_kind)) for pile in _turned([*once_per_kind.values()], turn)]
    meant = _kinds(group[0])
    piles.sort(key=lambda pile: _kind_of(pile[0]) not in meant)
    return [case for row in zip_longest(*piles) for case in row if case is not None]


def _kind_of(case: Case) -> str:
    return KINDS[case.optimizer or ""]


def _turned(some: list[Any], turn: int) -> list[Any]:
    start = turn % len(some)
    return some[start:] + some[:start]


def _kinds(case: Case) -> set[str]:
    """Return the kinds that a test is about."""
    found = {name for mark in case.marks("kinds") for name in mark.args}
    assert found <= {*KINDS.values()}, f"{case.test.nodeid}: the kinds are {sorted({*KINDS.values()})}"
    return found


def _repeated(cases: list[Case]) -> Iterator[Case]:
    """Yield slow cases of a test of a mechanism of which `make test` tries other cases."""
    apis: dict[Any, list[Case]] = {}  # each has code of its own
    for case in cases:
        apis.setdefault(case.call.params.get("api"), []).append(case)
    for each in apis.values():
        slow = [case for case in each if case.is_slow]
        if len(slow) < len(each) and not _is_of_rules(each[0].test):
            yield from slow


def _is_of_rules(test: Any) -> bool:
    return test.path.parent.name in OF_RULES or test.path.parent == Path(__file__).parent


def _most(group: list[Case], combinations: int) -> tuple[int, int]:
    """Return with how many optimizers `make test` and `make test-all` try a combination of a test's parameters."""
    first, there = group[0], {_kind_of(case) for case in group}
    meant, each = len(_kinds(first) & there), max(USUALLY, len(there))
    if mark := next(first.marks("thinned"), None):
        most, in_all = (max(n, meant) for n in (*mark.args, each)[:2])
        return most, in_all
    if _is_of_rules(first.test) or next(first.marks("every"), None):
        return len(TAKEN), len(TAKEN)
    # Each combination begins one kind further than the one before it.
    return max(FEWEST, meant, len(there) - combinations + 1), each


def _name(given: Any) -> str | None:
    """Return the optimizer that a parameter is: by its name, a class, or the row of a table."""
    if isinstance(given, str):
        return given
    return next(
        (name for name in (getattr(given, "name", None), getattr(given, "__name__", None)) if name in TAKEN), None
    )


def _options(given: Any) -> Iterator[str]:
    if isinstance(given, str) and given in OPTIONS:
        yield given
    if isinstance(given, dict):
        yield from (key for key in given if isinstance(key, str) and key in OPTIONS)
