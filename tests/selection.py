"""Which optimizers a test of all of them is tried with.

Tests that are about an option leave out optimizers that do not take it. A test says
`@pytest.mark.needs("max_grad_norm")`; options among its parameters, by name or in dicts, need no mark.

A mechanism depends on what a rule sums and keeps (`KINDS`), and not on which rule it is. So `make test-all` tries each
combination of a test's other parameters with an optimizer of each kind, and three at least, in turn from one to the
next; `make test` tries it with three, or with one of each kind where the test has fewer than three combinations. Where
it says `@pytest.mark.thinned(n, m)`, `make test` tries n and `make test-all` m, or as many as usual; with
`@pytest.mark.kinds("rows and columns")` one of this kind is always among them. `EVERY=1 make test-all` tries all. What
says something of each rule is in one of `OF_RULES`, or marked `every`, and tried with all of them by `make test`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from typing import Any
from zlib import crc32

from layerwise.registry import ENTRIES, Entry

# Every option that an optimizer takes, and whether its sums can be exact.
TAKEN = {
    name: {spec.name for spec in fields(entry.hyper)} | ({"reproducible"} if not entry.hyper().of_matrices else set())
    for name, entry in ENTRIES.items()
}


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
USUALLY = 3
OF_RULES = ("parity", "reference")  # folders; and files that are in none
# Without one that is also an argument of all optimizers, in NumPy.
OPTIONS = set().union(*TAKEN.values()) - {"decay"}
Case = tuple[str, Any]  # the kind of its optimizer, and an item


def chosen(items: list[Any], slow: Any) -> list[Any]:
    """Return what `make test-all` tries, with what `make test` does not marked as slow."""
    kept = [item for item in items if _applies(item)]
    away = {*thin(kept, slow)}
    return [item for item in kept if item not in away]


def _applies(item: Any) -> bool:
    """Return whether the optimizer among a test's parameters, if there is one, takes all options that it is about."""
    given = _given(item)
    optimizer = next((name for name in map(_name, given) if name in TAKEN), None)
    if optimizer is None:
        return True
    needed = {name for mark in item.iter_markers("needs") for name in mark.args}
    return needed | {name for one in given for name in _options(one)} <= TAKEN[optimizer]


def thin(items: list[Any], slow: Any) -> list[Any]:
    """Mark as slow what `make test-all` tries and `make test` does not, and return what neither does."""
    tests: dict[str, dict[Any, list[Case]]] = {}
    words: dict[int, str] = {}  # of parameters, which many items share
    for item in items:
        given = [(one, _name(one)) for one in _given(item)]
        optimizer = next((name for _, name in given if name in TAKEN), None)
        if optimizer:
            others = [one for one, name in given if name not in TAKEN]
            key = tuple(words.get(id(one)) or words.setdefault(id(one), repr(one)) for one in others)
            tests.setdefault(item.nodeid.partition("[")[0], {}).setdefault(key, []).append((KINDS[optimizer], item))
    left_out: list[Any] = []
    for test, groups in tests.items():
        # From its own name, so that no test has other cases because there is one more.
        for turn, group in enumerate(groups.values(), crc32(test.encode())):
            most, in_all = _most(group, len(groups))
            ordered = _in_turn(group, turn)
            ordered.sort(key=lambda item: item.get_closest_marker("slow") is not None)
            for item in ordered[most:]:
                item.add_marker(slow)
            left_out += [] if os.environ.get("EVERY") else ordered[in_all:]
    return left_out


def _given(item: Any) -> list[Any]:
    return list(item.callspec.params.values()) if hasattr(item, "callspec") else []


def _in_turn(group: list[Case], turn: int) -> list[Any]:
    """Return the cases in the order in which they are tried: one of each kind, then another of each."""
    of_kinds: dict[str, list[Case]] = {}
    for kind, item in group:
        of_kinds.setdefault(kind, []).append((kind, item))
    piles = [_turned(pile, turn // len(of_kinds)) for pile in _turned([*of_kinds.values()], turn)]
    meant = _kinds(group[0][1])
    piles.sort(key=lambda pile: pile[0][0] not in meant)
    return [one[1] for row in zip_longest(*piles) for one in row if one is not None]


def _turned(some: list[Any], turn: int) -> list[Any]:
    start = turn % len(some)
    return some[start:] + some[:start]


def _kinds(item: Any) -> set[str]:
    """Return the kinds that a test is about."""
    found = {name for mark in item.iter_markers("kinds") for name in mark.args}
    assert found <= {*KINDS.values()}, f"{item.nodeid}: the kinds are {sorted({*KINDS.values()})}"
    return found


def repeated(items: list[Any]) -> Iterator[Any]:
    """Yield slow cases of tests of a mechanism of which `make test` tries other cases."""
    tests: dict[Any, list[Any]] = {}
    for item in items:
        api = item.callspec.params.get("api") if hasattr(item, "callspec") else None  # which has code of its own
        tests.setdefault((item.nodeid.partition("[")[0], api), []).append(item)
    for cases in tests.values():
        slow = [item for item in cases if item.get_closest_marker("slow") is not None]
        if len(slow) < len(cases) and not _is_of_rules(cases[0]):
            yield from slow


def _is_of_rules(item: Any) -> bool:
    return item.path.parent.name in OF_RULES or item.path.parent == Path(__file__).parent


def _most(group: list[Case], combinations: int) -> tuple[int, int]:
    """Return with how many optimizers `make test` and `make test-all` try a combination of a test's parameters."""
    test, there = group[0][1], {kind for kind, _ in group}
    meant, each = len(_kinds(test) & there), max(USUALLY, len(there))
    if mark := test.get_closest_marker("thinned"):
        most, in_all = (max(n, meant) for n in (*mark.args, each)[:2])
        return most, in_all
    every = _is_of_rules(test) or test.get_closest_marker("every") is not None
    if every:
        return len(TAKEN), len(TAKEN)
    # Three combinations one after the other are tried with all kinds.
    return max(USUALLY, meant) if combinations >= USUALLY else each, each


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
