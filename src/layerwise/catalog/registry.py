"""The list of optimizers: every module of `rules` with a class of options, a `State` and a `step`.

This is the only list: APIs, engines, tests and documentation read it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from layerwise import rules
from layerwise.options.settings import Hyper
from layerwise.rules.states import HINTS, field_annotations


class Entry(NamedTuple):
    """An optimizer: its name, the module with its formula, and its options."""

    name: str
    rule: ModuleType
    hyper: type[Hyper]


def _modules() -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(rules.__path__, f"{rules.__name__}."):
        module = import_module(found.name)
        if hasattr(module, "step"):
            yield module


def _entry(module: ModuleType) -> Entry:
    own = [
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, Hyper) and one.__module__ == module.__name__
    ]
    if len(own) != 1 or not (hasattr(module, "State") and hasattr(module, "shapes")):
        raise ImportError(
            f"{module.__name__} has a `step` and so must declare a rule: one class derived from "
            f"layerwise.options.settings.Hyper (it has {len(own)}), `State` and `shapes`. rules/lamb.py is the pattern."
        )
    HINTS[module.__name__] = field_annotations(module)
    return Entry(own[0].__name__, module, own[0])


ENTRIES: dict[str, Entry] = {entry.name: entry for entry in map(_entry, _modules())}
ALL_OPTIONS = frozenset(spec for entry in ENTRIES.values() for spec in entry.hyper.__dataclass_fields__)
BY_LOWER = {name.lower(): name for name in ENTRIES}
