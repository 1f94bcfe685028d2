"""Names that a module does not have: errors that say where they are, or how they are written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from difflib import get_close_matches
from typing import Any


def missing(module: str, hint: Callable[[str], str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module: it raises with a hint, if there is one for the name."""

    def __getattr__(name: str) -> Any:  # noqa: N807
        said = hint(name)
        message = f"module {module!r} has no attribute {name!r}{said and f'. {said}'}."
        # An import statement asks here before it gives up, and forgets the message of an AttributeError.
        asked_by = sys._getframe(1).f_code.co_name
        raise ImportError(message, name=module) if said and asked_by == "_handle_fromlist" else AttributeError(message)

    return __getattr__


def nearly(module: str, names: Collection[str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module that has names nearly like the one asked for, such as Lamb for LAMB."""
    by_lower = {name.lower(): name for name in names}

    def hint(name: str) -> str:
        close = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.8)
        return f"Is {by_lower[close[0]]} meant" if close else ""

    return missing(module, hint)
