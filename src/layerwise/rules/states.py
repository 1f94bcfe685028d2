"""Properties of the fields of a rule's state, from the annotations of its `State`."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import get_type_hints

# By rule, from the registry. Read in advance, because a tracer of steps would have to trace the annotations otherwise.
HINTS: dict[str, Mapping[str, object]] = {}


def field_annotations(rule: ModuleType) -> Mapping[str, object]:
    """Return the annotations of a rule's state."""
    return HINTS.get(rule.__name__) or get_type_hints(rule.State, include_extras=True)


def _says(rule: ModuleType, field: str, what: str) -> bool:
    hints = field_annotations(rule)
    return what in getattr(hints[field], "__metadata__", ())


def is_signed(rule: ModuleType, field: str) -> bool:
    """Return True if a field of a rule's state may be negative."""
    return not _says(rule, field, "never negative")


def is_statistic(rule: ModuleType, field: str) -> bool:
    """Return True if a field has one number per row or column, not per element."""
    return _says(rule, field, "of rows or columns")


def is_of_layer(rule: ModuleType, field: str) -> bool:
    """Return True if a field has one number per tensor or block."""
    return _says(rule, field, "of a layer")
