"""Names that are not there: the nearest ones, what a module imports for them, and errors that say where they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any


def nearest(name: object, known: Iterable[str], n: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return up to so many names that are nearly this one, in capital letters or not."""
    by_lower = {one.lower(): one for one in known}
    return [by_lower[one] for one in get_close_matches(str(name).lower(), by_lower, n, cutoff)]


def did_you_mean(names: Iterable[str], remark: str = "") -> str:
    """Return the question whether one of these names was meant, or an empty string if there are none."""
    close = " or ".join(f"`{name}`" for name in names)
    return f"Did you mean {close}{f' ({remark})' if remark else ''}?" if close else ""


def missing(module: str, hint: Callable[[str], str], doors: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module: it raises with the sentence that `hint` has for a name.

    `doors` are names that it has, each with the module that is imported for it.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        if doors is not None and name in doors:
            return getattr(import_module(doors[name]), name)
        said = hint(name)
        message = f"module {module!r} has no attribute {name!r}.{said and f' {said}'}"
        # An import statement asks here before it gives up, and forgets the message of an AttributeError.
        asked_by = sys._getframe(1).f_code.co_name
        raise ImportError(message, name=module) if said and asked_by == "_handle_fromlist" else AttributeError(message)

    return __getattr__


def nearly(module: str, names: Collection[str], doors: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module that has names nearly like the one asked for, such as Lamb for LAMB."""

    def hint(name: str) -> str:
        return did_you_mean(nearest(name, names, 1, cutoff=0.8))

    return missing(module, hint, doors)
