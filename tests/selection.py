"""Which optimizers a test of all of them is tried with.

Tests that are about an option leave out optimizers that do not take it. A test says
`@pytest.mark.needs("max_grad_norm")`; options among its parameters, by name or in dicts, need no mark.

Where a mechanism is tried on many layouts, say, and does not depend on the rule, `@pytest.mark.thinned(2)` lets
`make test` try each layout with two optimizers in turn. `make test-all` tries all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from layerwise.arguments import NUMPY, TORCH
from layerwise.registry import ENTRIES

TAKEN = {name: {spec.name for spec in fields(entry.hyper)} for name, entry in ENTRIES.items()}
# Of the same name in fronts, where they are arguments of all optimizers.
OPTIONS = set().union(*TAKEN.values()) - {one.name for one in (*NUMPY, *TORCH)}


def applies(item: Any) -> bool:
    """Return whether the optimizer among a test's parameters, if there is one, takes all options that it is about."""
    callspec = getattr(item, "callspec", None)
    given = [] if callspec is None else list(callspec.params.values())
    optimizer = next((name for name in map(_name, given) if name in TAKEN), None)
    if optimizer is None:
        return True
    needed = {name for mark in item.iter_markers("needs") for name in mark.args}
    return needed | {name for one in given for name in _options(one)} <= TAKEN[optimizer]


def thin(items: list[Any], slow: Any) -> None:
    """Mark as slow all but so many optimizers, in turn, of each combination of a thinned test's other parameters."""
    combinations: dict[str, dict[Any, list[Any]]] = {}
    for item in items:
        if item.get_closest_marker("thinned") and hasattr(item, "callspec") and not item.get_closest_marker("slow"):
            others = tuple(repr(one) for one in item.callspec.params.values() if _name(one) not in TAKEN)
            combinations.setdefault(item.nodeid.partition("[")[0], {}).setdefault(others, []).append(item)
    for start, groups in enumerate(combinations.values()):
        for turn, group in enumerate(groups.values(), start):
            most = group[0].get_closest_marker("thinned").args[0]
            tried = {(turn + i) % len(group) for i in range(most)}
            for i, item in enumerate(group):
                if i not in tried:
                    item.add_marker(slow)


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
