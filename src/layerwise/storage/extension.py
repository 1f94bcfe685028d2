"""The compiled extension."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def extension() -> ModuleType | None:
    """Return the compiled extension, or None if it is missing."""
    try:
        from layerwise import _native
    except ImportError:
        return None
    return _native
