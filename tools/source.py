"""Values and long lines as Python source."""

from __future__ import annotations

import re
import textwrap


def source_of(value: object) -> str:
    """Return a default as source."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def wrapped(line: str, width: int) -> str:
    """Return a long line within parentheses in several, cut after commas."""
    kept = re.sub(r"(?<!,) ", "~", line)
    return "\n".join(textwrap.wrap(kept, width, subsequent_indent="    ", break_on_hyphens=False)).replace("~", " ")
